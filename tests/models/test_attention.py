"""The ragged write and block attention against a dense float64 reference, and what must change no bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import attention

BATCH, KV_HEADS, GROUP, WIDTH, TIME = 2, 2, 3, 8, 4


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def used(*lengths):
    return jnp.asarray(lengths, jnp.int32)


def inputs(capacity, dtype=jnp.float32, width=WIDTH):
    """Queries, a layer of the cache, and the keys and values of the queries' own tokens."""
    queries = normal(BATCH, TIME, KV_HEADS, GROUP, width, dtype=dtype)
    cached = normal(BATCH, KV_HEADS, capacity, 2 * width, seed=1, dtype=dtype)
    return queries, cached, normal(BATCH, KV_HEADS, TIME, 2 * width, seed=2, dtype=dtype)


def dense(queries, cached, fresh, lengths):
    """One query at a time, over exactly the slots and tokens that it may see."""
    queries, cached, fresh = (np.asarray(x, np.float64) for x in (queries, cached, fresh))
    out = np.zeros_like(queries)
    for b, t, k, g in np.ndindex(*queries.shape[:4]):
        seen = np.concatenate([cached[b, k, : int(lengths[b])], fresh[b, k, : t + 1]])
        keys, values = np.split(seen, 2, axis=-1)
        scores = keys @ queries[b, t, k, g] / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, t, k, g] = weights @ values / weights.sum()
    return out


def poisoned(cached, lengths):
    """The same cache with junk in every unused slot."""
    unused = np.arange(cached.shape[2])[None, None, :, None] >= np.asarray(lengths)[:, None, None, None]
    junk = jnp.where(jnp.arange(cached.shape[3]) < cached.shape[3] // 2, jnp.nan, 1e30)
    return jnp.where(unused, junk, cached)


@pytest.fixture(params=("here", "accelerator"))
def attend(request, monkeypatch):
    """Attention as it compiles for this platform, and, in its own dtypes, as it does for an accelerator."""
    if request.param == "accelerator":
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, default, **platforms: default(*args))
    return jax.jit(lambda *arguments: attention.attend(*arguments))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "capacity, lengths",
    # In the last two, the tokens lie in two blocks; in the very last, all but one in a block of their own.
    [(24, (0, 17)), (512, (300, 5)), (1536, (3, 1400)), (1536, (0, 0)), (1536, (3, 510)), (1536, (1023, 0))],
)
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 2e-5), (jnp.bfloat16, 2e-2)])
def test_attend_equals_dense_attention(attend, capacity, lengths, dtype, tolerance):
    arrays = inputs(capacity, dtype)
    out = attend(*arrays, used(*lengths))
    assert out.dtype == dtype
    np.testing.assert_allclose(np.asarray(out, np.float64), dense(*arrays, lengths), atol=tolerance)


def test_attend_with_heads_of_whole_lanes(attend):
    arrays = inputs(24, width=128)
    np.testing.assert_allclose(attend(*arrays, used(20, 7)), dense(*arrays, (20, 7)), atol=2e-5)


@pytest.mark.parametrize("capacity, begin", [(24, 17), (1536, 506), (1536, 1021)])
def test_the_split_between_cached_and_fresh_tokens_changes_no_bit(capacity, begin):
    """So a round that keeps two tokens leaves the text where two rounds of one token each leave it."""
    text = normal(BATCH, KV_HEADS, capacity, 2 * WIDTH)
    queries = normal(BATCH, capacity, KV_HEADS, GROUP, WIDTH, seed=1)

    @jax.jit
    def attend(at):
        """Of the tokens from `at` on, over the text before them; what comes behind them is junk."""
        fresh = jax.lax.dynamic_slice_in_dim(text, at, TIME, axis=2)
        rows = jax.lax.dynamic_slice_in_dim(queries, at, TIME, axis=1)
        cached = jnp.where(jnp.arange(capacity)[:, None] < at, text, 1e4)
        return attention.attend(rows, cached, fresh, jnp.full(BATCH, at))

    together = attend(begin)
    for later in range(1, TIME):
        np.testing.assert_array_equal(attend(begin + later)[:, : TIME - later], together[:, later:])


@pytest.mark.parametrize("capacity, lengths", [(24, (0, 17)), (1536, (3, 700))])
def test_junk_in_masked_slots_changes_no_bit(attend, capacity, lengths):
    queries, cached, fresh = inputs(capacity)
    out = attend(queries, cached, fresh, used(*lengths))
    junk = attend(queries, poisoned(cached, lengths), fresh, used(*lengths))
    np.testing.assert_array_equal(out, junk)


@pytest.mark.parametrize("neighbour", [3, 600, 1500])
def test_trailing_blocks_for_a_longer_neighbour_change_no_bit(attend, neighbour):
    arrays = inputs(1536)
    short = attend(*arrays, used(3, 3))[0]
    np.testing.assert_array_equal(short, attend(*arrays, used(3, neighbour))[0])


def test_blocks_beyond_the_longest_row_are_not_visited(attend):
    # NaN in an unvisited block's values would reach the output as 0 * NaN.
    queries, cached, fresh = inputs(1536)
    cached = cached.at[:, :, 1024:].set(jnp.nan)
    assert np.isfinite(attend(queries, cached, fresh, used(3, 1024 - TIME))).all()


@pytest.mark.parametrize("capacity, slots", [(1, 1), (511, 511), (512, 512), (513, 1024), (1024, 1024)])
def test_capacity_is_rounded_up_to_whole_blocks(capacity, slots):
    cache = attention.init_cache(2, BATCH, KV_HEADS, capacity, WIDTH, jnp.bfloat16)
    arrays = jax.tree.leaves(cache)
    assert len(arrays) == 2
    assert {(x.shape, x.dtype.name) for x in arrays} == {((BATCH, KV_HEADS, slots, 2 * WIDTH), "bfloat16")}


def test_attend_refuses_a_cache_of_broken_blocks():
    with pytest.raises(ValueError, match="700 slots"):
        attention.attend(*inputs(700), used(0, 0))


def caches(capacity, seed=0):
    return attention.KVCache(
        tuple(normal(BATCH, KV_HEADS, capacity, 2 * WIDTH, seed=seed + layer) for layer in range(2))
    )


@pytest.mark.parametrize("write", (attention.write, attention._write_row_by_row), ids=("here", "tpu"))
def test_write_puts_each_row_at_its_own_offset(write):
    cache, fresh = caches(24), caches(TIME, seed=50)
    written = write(cache, fresh, used(20, 3))
    for found, old, new in zip(*map(jax.tree.leaves, (written, cache, fresh)), strict=True):
        expected = np.array(old)
        for row, offset in enumerate((20, 3)):
            expected[row, :, offset : offset + TIME] = new[row]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("write", (attention.write, attention._write_row_by_row), ids=("here", "tpu"))
def test_write_in_a_loop_copies_no_cache(write):
    def loop(cache, fresh, offsets):
        return jax.lax.fori_loop(0, 4, lambda i, cache: write(cache, fresh, offsets + i), cache)

    def abstract(tree):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

    arguments = abstract((caches(4096), caches(TIME), used(0, 0)))
    memory = jax.jit(loop, donate_argnums=0).lower(*arguments).compile().memory_analysis()
    size = sum(x.size * 4 for x in jax.tree.leaves(arguments[0]))
    assert memory.alias_size_in_bytes == size
    assert memory.temp_size_in_bytes < size / 16
