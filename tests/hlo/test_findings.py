"""Faults of decoding programs are found in programs that have them, and only there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.hlo import findings
from specjax.hlo.module import parse

CACHE = (2, 3, 64, 8)


def rounds(step):
    """Rounds of `step` on a bfloat16 cache, until a flag of the data says so."""

    def run(cache, x):
        def body(carry):
            cache, x, n = carry
            cache, x = step(cache, x, n)
            return cache, x, n + 1

        return jax.lax.while_loop(lambda carry: carry[1].sum() < 100, body, (cache, x, 0))

    shapes = jax.ShapeDtypeStruct(CACHE, jnp.bfloat16), jax.ShapeDtypeStruct((2, 3, 1, 8), jnp.bfloat16)
    return parse(jax.jit(run, donate_argnums=0).lower(*shapes).compile())


def sound(cache, x, n):
    cache = jax.lax.dynamic_update_slice(cache, x, (0, 0, n, 0))
    return cache, x + jax.lax.dynamic_slice_in_dim(cache, n, 1, axis=2).mean()


def upcast(cache, x, n):
    """Attention over a float32 copy of all the cache."""
    scores = jnp.einsum("bktd,bksd->bkts", x.astype(jnp.float32), cache.astype(jnp.float32))
    return sound(cache, x + scores.max().astype(x.dtype), n)


def test_a_sound_loop_copies_nothing():
    program = rounds(sound)
    assert findings.cache_copies(program, [CACHE], findings.loop_of_rounds(program)) == []


def test_an_upcast_in_the_loop_is_found():
    program = rounds(upcast)
    found = findings.cache_copies(program, [CACHE], findings.loop_of_rounds(program))
    assert any(text.startswith("convert f32[") for text in found), found


@pytest.mark.parametrize("permuted", [(3, 2, 64, 8), (6, 64, 8), (2, 3, 8, 8, 8), (2, 64, 3, 8), (3072,)])
def test_permuted_merged_and_split_axes_are_the_same_cache(permuted):
    program = rounds(upcast)
    assert findings.cache_copies(program, [permuted])


@pytest.mark.parametrize("other", [(2, 3, 64, 16), (4, 768), (5, 64, 8)])
def test_other_arrays_are_not(other):
    assert findings.cache_copies(rounds(upcast), [other]) == []


def test_a_fresh_cache_is_no_copy():
    def fresh(x, n):
        empty = jnp.zeros(CACHE, x.dtype)
        write = jax.lax.dynamic_update_slice
        return write(empty, x, (0, 0, n, 0)), write(empty, x, (0, 0, n + 1, 0))

    arguments = jax.ShapeDtypeStruct((2, 3, 1, 8), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)
    program = parse(jax.jit(fresh).lower(*arguments).compile())
    assert findings.cache_copies(program, [CACHE]) == []


def test_a_program_without_a_loop_has_no_rounds():
    with pytest.raises(ValueError, match="no loop"):
        findings.loop_of_rounds(parse(jax.jit(jnp.sin).lower(1.0).compile()))


def test_transfers_to_the_host_are_found():
    def talks(x):
        jax.debug.callback(lambda x: None, x)
        return x * 2

    assert findings.host_transfers(parse(jax.jit(talks).lower(1.0).compile()))
    assert findings.host_transfers(parse(jax.jit(jnp.sin).lower(1.0).compile())) == []


def test_loops_that_write_rows_are_counted():
    def write(cache, rows, offsets):
        def one(row, cache):
            update = jax.lax.dynamic_slice_in_dim(rows, row, 1)
            return jax.lax.dynamic_update_slice(cache, update, (row, 0, offsets[row], 0))

        cache = jax.lax.fori_loop(0, 2, one, cache)
        return jax.lax.fori_loop(0, 2, one, cache + 1)

    arguments = np.zeros(CACHE, np.float32), np.zeros((2, 3, 1, 8), np.float32), np.zeros(2, np.int32)
    program = parse(jax.jit(write, donate_argnums=0).lower(*arguments).compile())
    assert findings.row_write_loops(program, [CACHE]) == 2
    assert findings.row_write_loops(program, [(5, 5)]) == 0
