"""Asserts about programs: each passes on a sound program and fails on its faulty twin."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.testing import assert_donated, assert_no_cache_copies, assert_one_compile

SHAPE = (2, 3, 64, 8)  # [B, K, S, D]


def in_place(cache, row):
    """Eight steps that each write one slot."""

    def step(i, cache):
        return jax.lax.dynamic_update_slice(cache, row + i, (0, 0, i, 0))

    return jax.lax.fori_loop(0, 8, step, cache)


def in_float32(cache, row):
    """The same, with a cache that is converted as a whole."""
    return in_place(cache.astype(jnp.float32), row.astype(jnp.float32)).astype(cache.dtype)


def transposed(cache, row):
    """The same, with the cache in another layout inside the loop."""
    swapped = in_place(cache.swapaxes(1, 3).copy(), row.swapaxes(1, 3))
    return swapped.swapaxes(1, 3).copy()


def compiled(function, **options):
    cache = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)
    row = jax.ShapeDtypeStruct((2, 3, 1, 8), jnp.bfloat16)
    return jax.jit(function, **options).lower(cache, row).compile()


def test_a_cache_written_in_place_is_not_copied():
    program = compiled(in_place, donate_argnums=0)
    assert_no_cache_copies(program, [SHAPE])
    assert_no_cache_copies(program.as_text(), [SHAPE])


@pytest.mark.parametrize(
    "function, options",
    [(in_place, {}), (in_float32, {"donate_argnums": 0}), (transposed, {"donate_argnums": 0})],
)
def test_copies_of_a_cache_are_named(function, options):
    """Not donated; converted; transposed."""
    with pytest.raises(AssertionError, match=r"copy an array of the cache:\n  \w"):
        assert_no_cache_copies(compiled(function, **options), [SHAPE])


def test_an_array_of_another_shape_is_no_cache():
    assert_no_cache_copies(compiled(in_place), [(2, 3, 65, 8)])


def test_no_shapes_are_refused():
    with pytest.raises(ValueError, match="cache_shapes is empty"):
        assert_no_cache_copies("nothing", [])


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="expected the text of an HLO module"):
        assert_no_cache_copies("nothing", [SHAPE])


def test_donation():
    nbytes = int(np.prod(SHAPE)) * 2
    assert_donated(compiled(in_place, donate_argnums=0), nbytes)
    with pytest.raises(AssertionError, match=f"0 bytes of the arguments become results; expected {nbytes}"):
        assert_donated(compiled(in_place), nbytes)


def arrays(*lengths):
    return [(np.full(length, index, np.float32),) for index, length in enumerate(lengths)]


def test_one_compile():
    double = jax.jit(lambda x: x * 2)
    results = assert_one_compile(double, arrays(3, 3, 3))
    np.testing.assert_array_equal(results[2], np.full(3, 4.0))
    assert_one_compile(double, arrays(3, 3), programs=0)


def test_a_second_compile_is_counted():
    double = jax.jit(lambda x: x * 2)
    with pytest.raises(AssertionError, match=r"compiled \[1, 1, 0\] programs; expected 1, and then none"):
        assert_one_compile(double, arrays(4, 5, 4))
    with pytest.raises(AssertionError, match=r"compiled \[0\] programs; expected 1"):
        assert_one_compile(double, arrays(4))
    with pytest.raises(AssertionError, match=r"compiled \[1, 1\] programs; expected any number"):
        assert_one_compile(double, arrays(6, 7), programs=None)


def test_one_compile_of_something_that_compiles_small_programs_too():
    double = jax.jit(lambda x: x * 2)
    assert_one_compile(lambda x: double(jnp.asarray(x) + 1), arrays(8, 8), programs=None)
