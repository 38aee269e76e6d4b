"""The KV cache: its layout, the ragged write into it and the attention over it.

The three belong together. Layout `[B, K, S, 2 D]` lets a ragged write update the cache in place inside a
loop (with `[B, S, K, D]` the TPU compiler copies all of it), and lets attention read whole blocks of slots as
matrices. The key and the value of a token lie side by side: with `D = 64`, arrays of their own would fill
half of a TPU's 128 lanes, and the compiler would rather copy them into another layout. Nothing outside this
file knows the layout.

A slot is an absolute position. The cache holds no lengths: slots at or above a row's length are garbage, and
a mask is all that keeps them out. Tokens attend to the cache and to each other before they are written: the
one write of all layers comes last, where nothing reads the cache any more and XLA may do it in place.
"""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp

from specjax.models.layers import compute_dtype

# Slots that attention visits at a time.
BLOCK = 512
# On a GPU the slots of a block are copied before they are multiplied. As long as the copies of all rows stay
# in its second-level cache, that is no traffic of its memory: half of what an H200 has.
_BLOCK_BYTES = 1 << 25
# Width of a TPU's registers: what begins at a multiple of it can be cut out of a cache for nothing.
_LANES = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values.

    Attributes:
        layers: for each layer `[B, K, S, 2 D]`, the key and then the value of a slot. Arrays of their own:
            stacked, an update of one would copy the rest.
    """

    layers: tuple[jax.Array, ...]


def init_cache(
    num_layers: int, batch: int, num_kv_heads: int, capacity: int, head_dim: int, dtype: jax.typing.DTypeLike
) -> KVCache:
    """A cache of zeros with at least `capacity` slots a row: beyond one block, whole blocks."""
    if capacity > BLOCK:
        capacity = -(-capacity // BLOCK) * BLOCK
    shape = (batch, num_kv_heads, capacity, 2 * head_dim)
    return KVCache(layers=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)))


def write(cache: KVCache, fresh: KVCache, offsets: jax.Array) -> KVCache:
    """Writes each row's fresh entries at that row's own offset, into every layer at once.

    Args:
        cache: arrays `[B, K, S, 2 D]`. fresh: arrays `[B, K, T, 2 D]`.
        offsets: int32 `[B]`. The caller guarantees `offsets + T <= S`: JAX would clamp a slice that starts
            too late, onto valid entries.

    Returns:
        The cache with slots `offsets[b]` to `offsets[b] + T - 1` of row `b` replaced.
    """
    # A ragged write becomes a loop over the rows on TPU: one for all arrays, not one for each.
    return jax.lax.platform_dependent(cache, fresh, offsets, tpu=_write_row_by_row, default=_write_rows)


def _write_rows(cache: KVCache, fresh: KVCache, offsets: jax.Array) -> KVCache:
    def write_row(row: jax.Array, update: jax.Array, offset: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(offset)
        return jax.lax.dynamic_update_slice(row, update, (zero, offset, zero))

    return jax.tree.map(lambda rows, updates: jax.vmap(write_row)(rows, updates, offsets), cache, fresh)


def _write_row_by_row(cache: KVCache, fresh: KVCache, offsets: jax.Array) -> KVCache:
    zero = jnp.zeros_like(offsets[0])

    def write_row(row: jax.Array, cache: KVCache) -> KVCache:
        row = row.astype(offsets.dtype)

        def write(array: jax.Array, updates: jax.Array) -> jax.Array:
            update = jax.lax.dynamic_slice_in_dim(updates, row, 1, axis=0)
            return jax.lax.dynamic_update_slice(array, update, (row, zero, offsets[row], zero))

        return jax.tree.map(write, cache, fresh)

    return jax.lax.fori_loop(0, offsets.shape[0], write_row, cache)


def attend(queries: jax.Array, cached: jax.Array, fresh: jax.Array, used: jax.Array) -> jax.Array:
    """Causal grouped-query attention of a few tokens over the cache and over themselves.

    `softmax(q kᵀ / sqrt(D)) v` over the slots `s < used` and the fresh tokens up to the query's own, as an
    online softmax (Milakov and Gimelshein, 2018) over blocks of slots up to the longest row: cost follows the
    used length, and no score tensor spans the capacity. A block in which a row has nothing to see changes no
    bit of that row, so its neighbours' lengths cannot either.

    On CPU a fresh token is summed at its own slot: how the tokens of a text are split between cache and fresh
    changes no bit of the answer. Other devices sum fresh tokens first, without a copy of the blocks that they
    lie in; there another split may round differently.

    Args:
        queries: `[B, T, K, G, D]`; the `G` queries of a group share one key head.
        cached: a layer of the cache, `[B, K, S, 2 D]`. In unused slots, keys may be anything, NaN included,
            and values anything finite (their weight is 0, and 0 * NaN is NaN).
        fresh: keys and values `[B, K, T, 2 D]` of the tokens themselves.
        used: int32 `[B]`, slots of each row that count. The caller guarantees `used + T <= S`, see `write`.

    Returns:
        `[B, T, K, G, D]` in the dtype of the queries.
    """
    batch, time, heads, group, width = queries.shape
    chex.assert_shape(cached, (batch, heads, None, 2 * width))
    chex.assert_shape(fresh, (batch, heads, time, 2 * width))
    chex.assert_shape(used, (batch,))
    if cached.shape[2] > BLOCK and cached.shape[2] % BLOCK:
        raise ValueError(
            f"the cache has {cached.shape[2]} slots; more than {BLOCK} must be a multiple of it "
            "(see init_cache)"
        )
    # [B, K, T * G, D]: one matrix of queries for each key head.
    rows = queries.transpose(0, 2, 1, 3, 4).reshape(batch, heads, time * group, width)
    out = jax.lax.platform_dependent(
        rows,
        cached,
        fresh,
        used,
        cpu=functools.partial(_attend, in_order=True, block=BLOCK),
        tpu=functools.partial(_attend, in_order=False, block=BLOCK),
        default=functools.partial(_attend, in_order=False, block=_cached_block(cached)),
    ).astype(queries.dtype)
    return out.reshape(batch, heads, time, group, width).transpose(0, 2, 1, 3, 4)


def _attend(
    rows: jax.Array, cached: jax.Array, fresh: jax.Array, used: jax.Array, *, in_order: bool, block: int
) -> jax.Array:
    """`attend` for queries `[B, K, T * G, D]`.

    Args:
        in_order: the fresh tokens are put among the cached ones, which copies blocks, not visited first.
        block: slots visited at a time.
    """
    count, width = rows.shape[2:]
    time, block = fresh.shape[2], min(cached.shape[2], block)
    order = jnp.repeat(jnp.arange(time), count // time)[:, None]
    # Of the slots, those before its end are what a query sees.
    ends = used[:, None, None, None] + (order + 1 if in_order else 0)

    def scores_of(entries: jax.Array, seen: jax.Array) -> jax.Array:
        return jnp.where(seen, _products_with_keys(rows, entries) * width**-0.5, -jnp.inf)

    def begin(entries: jax.Array, seen: jax.Array) -> tuple[jax.Array, ...]:
        scores = scores_of(entries, seen)
        highest = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        return highest, weights.sum(axis=-1, keepdims=True), _sums_of_values(weights, entries)

    def block_of_slots(index: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        start = index * block
        entries = jax.lax.dynamic_slice_in_dim(cached, start, block, axis=2)
        if in_order:
            entries = _put_among(entries, fresh, used - start)
        return entries, start + jnp.arange(block) < ends

    def visit(index: jax.Array | int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest, total, weighted = carry
        entries, seen = block_of_slots(index)
        scores = scores_of(entries, seen)
        new_highest = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_highest)
        rescale = jnp.exp(highest - new_highest)
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        return new_highest, total, weighted * rescale + _sums_of_values(weights, entries)

    # Every query sees itself, or slot 0: the maximum is finite from the beginning.
    carry = begin(*block_of_slots(0)) if in_order else begin(fresh, jnp.arange(time) <= order)
    if block < cached.shape[2]:
        carry = jax.lax.fori_loop(int(in_order), (jnp.max(ends) + block - 1) // block, visit, carry)
    elif not in_order:
        carry = visit(0, carry)
    _, total, weighted = carry
    return weighted / total


def _cached_block(cached: jax.Array) -> int:
    """Slots of a block of which the rows together hold at most `_BLOCK_BYTES`."""
    block = BLOCK
    while block > 64 and cached.nbytes // cached.shape[2] * block > _BLOCK_BYTES:
        block //= 2
    return block


def _put_among(entries: jax.Array, fresh: jax.Array, offsets: jax.Array) -> jax.Array:
    """`entries` `[B, K, S, 2 D]` with `fresh` `[B, K, T, 2 D]` from `offsets[b]` on, as far as they reach."""
    index = jnp.arange(entries.shape[2]) - offsets[:, None]
    time = fresh.shape[2]
    there = jnp.take_along_axis(fresh, jnp.clip(index, 0, time - 1)[:, None, :, None], axis=2)
    return jnp.where(((index >= 0) & (index < time))[:, None, :, None], there, entries)


def _products_with_keys(rows: jax.Array, entries: jax.Array) -> jax.Array:
    """`[B, K, R, D]` queries and `[B, K, S, 2 D]` entries: `[B, K, R, S]`, in float32 at least.

    Accelerators multiply in the dtype of the cache. Where keys do not fill whole lanes, cutting them out
    would cost more than multiplying the values with zeros. CPUs have no fast batched product of bfloat16:
    there the keys are widened first, which is a quarter faster when several tokens are scored.
    """
    width, dtype = rows.shape[-1], compute_dtype(rows.dtype)
    equation = "bkrd,bksd->bkrs"

    def wide(rows: jax.Array, entries: jax.Array) -> jax.Array:
        return jnp.einsum(equation, rows.astype(dtype), entries[..., :width].astype(dtype))

    def narrow(rows: jax.Array, entries: jax.Array) -> jax.Array:
        rows = rows.astype(entries.dtype)
        if width % _LANES:
            rows = jnp.pad(rows, ((0, 0), (0, 0), (0, 0), (0, width)))
        else:
            entries = entries[..., :width]
        return jnp.einsum(equation, rows, entries, preferred_element_type=dtype)

    return jax.lax.platform_dependent(rows, entries, cpu=wide, default=narrow)


def _sums_of_values(weights: jax.Array, entries: jax.Array) -> jax.Array:
    """`[B, K, R, S]` weights and `[B, K, S, 2 D]` entries: `[B, K, R, D]`, as `_products_with_keys`."""
    width, dtype = entries.shape[-1] // 2, weights.dtype
    equation = "bkrs,bksd->bkrd"

    def wide(weights: jax.Array, entries: jax.Array) -> jax.Array:
        return jnp.einsum(equation, weights, entries[..., width:].astype(dtype))

    def narrow(weights: jax.Array, entries: jax.Array) -> jax.Array:
        weights = weights.astype(entries.dtype)
        if width % _LANES:
            return jnp.einsum(equation, weights, entries, preferred_element_type=dtype)[..., width:]
        return jnp.einsum(equation, weights, entries[..., width:], preferred_element_type=dtype)

    return jax.lax.platform_dependent(weights, entries, cpu=wide, default=narrow)
