"""Asserts about compiled programs: how many there are, and what the compiler made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from specjax.hlo import findings, module
from specjax.testing.compiles import count_compiles


def assert_one_compile(
    function: Callable[..., Any], calls: Iterable[Sequence[Any]], *, programs: int | None = 1
) -> list[Any]:
    """Calls a function with several sets of arguments and checks that all of them share its programs.

    Args:
        function: compiles by itself, like `jax.jit(f)` or a method of `Decoder`.
        calls: positional arguments of each call.
        programs: how many the first call compiles; None if that does not matter, as for functions that also
            compile small programs for what they do outside of `jit`. The other calls must compile nothing.

    Returns:
        The results.

    Raises:
        AssertionError: more or fewer programs were compiled; the message says in which calls.

    Examples:
        >>> assert_one_compile(jax.jit(lambda x: 2 * x), [(jnp.ones(3),), (jnp.zeros(3),)])
    """
    results, compiled = [], []
    for arguments in calls:
        with count_compiles() as compiles:
            results.append(jax.block_until_ready(function(*arguments)))
        compiled.append(compiles.count)
    if any(compiled[1:]) or (programs is not None and compiled[:1] != [programs]):
        first = "any number" if programs is None else programs
        raise AssertionError(f"the calls compiled {compiled} programs; expected {first}, and then none")
    return results


def assert_no_cache_copies(compiled: Any, cache_shapes: Iterable[tuple[int, ...]]) -> None:
    """Checks that a compiled program makes no second array of all that a cache holds.

    Copies, transposes, conversions, selections and the like of an array with a cache's elements are found,
    whatever the order of its axes and whether some are merged or split; updates in place and fresh arrays of
    one value are none. Whether XLA copies is its own decision and differs between backends.

    Args:
        compiled: `jax.jit(f).lower(...).compile()`, or the text of its optimized HLO.
        cache_shapes: of the cache's arrays, as one device holds them.

    Raises:
        AssertionError: names the instructions.
        ValueError: there are no shapes, so that nothing would be found.
    """
    shapes = {tuple(shape) for shape in cache_shapes}
    if not shapes:
        raise ValueError("cache_shapes is empty; expected the shapes of the cache's arrays")
    copies = findings.cache_copies(module.parse(compiled), shapes)
    if copies:
        shown = "".join(f"\n  {copy}" for copy in copies[:8])
        raise AssertionError(f"{len(copies)} instructions copy an array of the cache:{shown}")


def assert_donated(compiled: Any, donated_bytes: int) -> None:
    """Checks that a compiled program writes its results over what was donated to it.

    Args:
        compiled: `jax.jit(f, donate_argnums=...).lower(...).compile()`.
        donated_bytes: of the arguments given away, as one device holds them. Tiled layouts may add padding.

    Raises:
        AssertionError: fewer bytes are aliased, so that something is held twice.
    """
    aliased = compiled.memory_analysis().alias_size_in_bytes
    if aliased < donated_bytes:
        raise AssertionError(f"{aliased} bytes of the arguments become results; expected {donated_bytes}")
