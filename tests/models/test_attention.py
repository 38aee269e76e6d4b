"""The ragged write and block attention against a dense float64 reference, and what must change no bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import attention

BATCH, KV_HEADS, GROUP, WIDTH, TIME = 2, 2, 3, 8, 4
ATTEND = jax.jit(attention.attend)


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def positions_from(*offsets):
    return jnp.asarray(offsets, jnp.int32)[:, None] + jnp.arange(TIME, dtype=jnp.int32)


def inputs(capacity, dtype=jnp.float32):
    queries = normal(BATCH, TIME, KV_HEADS, GROUP, WIDTH, dtype=dtype)
    shape = (BATCH, KV_HEADS, capacity, WIDTH)
    return queries, normal(*shape, seed=1, dtype=dtype), normal(*shape, seed=2, dtype=dtype)


def dense(queries, keys, values, positions):
    """One query at a time, over exactly the slots that it may see."""
    queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
    out = np.zeros_like(queries)
    for b, t, k, g in np.ndindex(*queries.shape[:4]):
        seen = slice(0, int(positions[b, t]) + 1)
        scores = keys[b, k, seen] @ queries[b, t, k, g] / np.sqrt(WIDTH)
        weights = np.exp(scores - scores.max())
        out[b, t, k, g] = weights @ values[b, k, seen] / weights.sum()
    return out


def poisoned(keys, values, positions):
    """The same cache with junk in every slot that no query of the row may see."""
    last = np.asarray(positions)[:, -1, None, None, None]
    unseen = np.arange(keys.shape[2])[None, None, :, None] > last
    return jnp.where(unseen, jnp.nan, keys), jnp.where(unseen, 1e30, values)


@pytest.mark.smoke
@pytest.mark.parametrize("capacity, offsets", [(24, (0, 17)), (512, (300, 5)), (1536, (3, 1400))])
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 2e-5), (jnp.bfloat16, 2e-2)])
def test_attend_equals_dense_attention(capacity, offsets, dtype, tolerance):
    arrays, positions = inputs(capacity, dtype), positions_from(*offsets)
    out = ATTEND(*arrays, positions)
    assert out.dtype == dtype
    np.testing.assert_allclose(np.asarray(out, np.float64), dense(*arrays, positions), atol=tolerance)


@pytest.mark.parametrize("capacity, offsets", [(24, (0, 17)), (1536, (3, 700))])
def test_junk_in_masked_slots_changes_no_bit(capacity, offsets):
    (queries, keys, values), positions = inputs(capacity), positions_from(*offsets)
    out = ATTEND(queries, keys, values, positions)
    np.testing.assert_array_equal(out, ATTEND(queries, *poisoned(keys, values, positions), positions))


@pytest.mark.parametrize("neighbour", [3, 600, 1500])
def test_trailing_blocks_for_a_longer_neighbour_change_no_bit(neighbour):
    arrays = inputs(1536)
    short = ATTEND(*arrays, positions_from(3, 3))[0]
    np.testing.assert_array_equal(short, ATTEND(*arrays, positions_from(3, neighbour))[0])


def test_blocks_beyond_the_longest_row_are_not_visited():
    # NaN in an unvisited block's values would reach the output as 0 * NaN.
    (queries, keys, values), positions = inputs(1536), positions_from(3, 700)
    values = values.at[:, :, 1024:].set(jnp.nan)
    assert np.isfinite(ATTEND(queries, keys, values, positions)).all()


@pytest.mark.parametrize("capacity, slots", [(1, 1), (511, 511), (512, 512), (513, 1024), (1024, 1024)])
def test_capacity_is_rounded_up_to_whole_blocks(capacity, slots):
    cache = attention.init_cache(2, BATCH, KV_HEADS, capacity, WIDTH, jnp.bfloat16)
    arrays = jax.tree.leaves(cache)
    assert len(arrays) == 4
    assert {(x.shape, x.dtype.name) for x in arrays} == {((BATCH, KV_HEADS, slots, WIDTH), "bfloat16")}


def test_attend_refuses_a_cache_of_broken_blocks():
    with pytest.raises(ValueError, match="700 slots"):
        attention.attend(*inputs(700), positions_from(0, 0))


def test_write_puts_each_row_at_its_own_offset():
    cache, fresh = normal(BATCH, KV_HEADS, 24, WIDTH), normal(BATCH, TIME, KV_HEADS, WIDTH, seed=1)
    written = np.asarray(attention.write(cache, fresh, positions_from(20, 3)))
    expected = np.array(cache)
    for row, offset in enumerate((20, 3)):
        for t in range(TIME):
            expected[row, :, offset + t] = fresh[row, t]
    np.testing.assert_array_equal(written, expected)


def test_write_in_a_loop_copies_no_cache():
    def loop(cache, fresh, offsets):
        def step(i, cache):
            return attention.write(cache, fresh, offsets[:, None] + i + jnp.arange(TIME))

        return jax.lax.fori_loop(0, 4, step, cache)

    cache = jax.ShapeDtypeStruct((BATCH, KV_HEADS, 4096, WIDTH), jnp.float32)
    fresh = jax.ShapeDtypeStruct((BATCH, TIME, KV_HEADS, WIDTH), jnp.float32)
    offsets = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    memory = jax.jit(loop, donate_argnums=0).lower(cache, fresh, offsets).compile().memory_analysis()
    assert memory.alias_size_in_bytes == cache.size * 4
    assert memory.temp_size_in_bytes < cache.size
