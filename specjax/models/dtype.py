"""Which dtype a model should run in on this machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

SUPPORTED = ("float32", "bfloat16")
# bfloat16 halves the memory, so it is preferred unless it is clearly slower: the slow path on CPU is more
# than ten times slower, timing noise much less than this.
_SLOWER = 1.25


def resolve_dtype(dtype: str | jax.typing.DTypeLike = "auto") -> jnp.dtype:
    """The dtype that a model is loaded in.

    Args:
        dtype: `"float32"`, `"bfloat16"`, a dtype object of one of them, or `"auto"`: bfloat16, unless a short
            probe shows that the default backend is slower in it than in float32, as CPUs without bfloat16
            instructions and older versions of XLA are.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(dtype, str) and dtype == "auto":
        return _faster_dtype(jax.default_backend())
    try:
        resolved = jnp.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"dtype={dtype!r}; expected 'auto', {', '.join(map(repr, SUPPORTED))}") from error
    if resolved.name not in SUPPORTED:
        raise ValueError(f"dtype={resolved.name!r}; expected 'auto', {', '.join(map(repr, SUPPORTED))}")
    return resolved


@functools.cache
def _faster_dtype(backend: str) -> jnp.dtype:
    float32, bfloat16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
    slower = _seconds(bfloat16, backend) > _SLOWER * _seconds(float32, backend)
    return float32 if slower else bfloat16


def _seconds(dtype: jnp.dtype, backend: str, repeats: int = 5) -> float:
    """The shortest of a few matmuls as narrow as those of decoding: x `[2, 576]`, weights `[8192, 576]`."""
    device = jax.devices(backend)[0]
    x, weights = jax.device_put((jnp.ones((2, 576), dtype), jnp.ones((8192, 576), dtype)), device)
    matmul = jax.jit(lambda x, weights: jax.lax.dot_general(x, weights, (((1,), (1,)), ((), ()))))
    matmul(x, weights).block_until_ready()
    return min(_timed(lambda: matmul(x, weights).block_until_ready()) for _ in range(repeats))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
