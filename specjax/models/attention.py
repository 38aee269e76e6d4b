"""The KV cache: its layout, the ragged write into it and the attention over it.

The three belong together. Layout `[B, K, S, D]` lets a ragged write update the cache in place inside a loop
(with `[B, S, K, D]` the TPU compiler copies all of it), and lets attention read whole blocks of slots as
matrices. Nothing outside this file knows the layout.

A slot is an absolute position. The cache holds no lengths: slots above a query's position are garbage, and
the mask `kv_position <= query_position` is all that keeps them out.
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


@functools.partial(jax.tree_util.register_dataclass, data_fields=["keys", "values"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer.

    Keys and values are arrays of their own, one pair a layer: stacked, an update of one would copy the rest.

    Attributes:
        keys: per layer `[B, K, S, D]`.
        values: likewise.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


def init_cache(
    num_layers: int, batch: int, num_kv_heads: int, capacity: int, head_dim: int, dtype: jax.typing.DTypeLike
) -> KVCache:
    """A cache of zeros with at least `capacity` slots a row: beyond one block, whole blocks."""
    if capacity > BLOCK:
        capacity = -(-capacity // BLOCK) * BLOCK
    shape = (batch, num_kv_heads, capacity, head_dim)
    return KVCache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
        values=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
    )


def write(cache: jax.Array, fresh: jax.Array, positions: jax.Array) -> jax.Array:
    """Writes each row's fresh entries at that row's own offset.

    Args:
        cache: `[B, K, S, D]`, the keys or the values of one layer.
        fresh: `[B, T, K, D]`.
        positions: int32 `[B, T]`, consecutive within a row, so that the first one is the offset. The caller
            guarantees `positions < S`: JAX would clamp a slice that starts too late, onto valid entries.

    Returns:
        The cache with slots `positions[b]` of row `b` replaced.
    """
    batch, time, heads, width = fresh.shape
    chex.assert_shape(cache, (batch, heads, None, width))
    chex.assert_shape(positions, (batch, time))

    def write_row(row: jax.Array, update: jax.Array, offset: jax.Array) -> jax.Array:
        zero = jnp.zeros_like(offset)
        return jax.lax.dynamic_update_slice(row, update, (zero, offset, zero))

    written = jax.vmap(write_row)(cache, fresh.swapaxes(1, 2).astype(cache.dtype), positions[:, 0])
    # The barrier keeps XLA from fusing the write into attention as well: on CPU it would write the same slots
    # twice, into two copies of the whole cache (float32, one row, one token).
    return jax.lax.optimization_barrier(written)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array) -> jax.Array:
    """Causal grouped-query attention of a few queries over the cache.

    `softmax(q kᵀ / sqrt(D)) v` over the slots `s <= position`, as an online softmax (Milakov and Gimelshein,
    2018) over blocks of slots up to the longest row: cost follows the used length, and no score tensor spans
    the capacity. A block in which a row has nothing to see changes no bit of that row, so its neighbours'
    lengths cannot either.

    Args:
        queries: `[B, T, K, G, D]`; the `G` queries of a group share one key head.
        keys: `[B, K, S, D]`. Masked slots may hold anything, NaN included.
        values: `[B, K, S, D]`. Masked slots may hold anything finite (their weight is 0, and 0 * NaN is NaN).
        positions: int32 `[B, T]`, non-negative.

    Returns:
        `[B, T, K, G, D]` in the dtype of the queries.
    """
    batch, time, heads, group, width = queries.shape
    chex.assert_shape(keys, (batch, heads, None, width))
    chex.assert_equal_shape([keys, values])
    chex.assert_shape(positions, (batch, time))
    capacity = keys.shape[2]
    block = min(capacity, BLOCK)
    if capacity % block:
        raise ValueError(
            f"the cache has {capacity} slots; more than {BLOCK} must be a multiple of it (see init_cache)"
        )

    wide = compute_dtype(queries.dtype)
    # [B, K, T * G, D]: one matrix of queries for each key head.
    rows = queries.transpose(0, 2, 1, 3, 4).reshape(batch, heads, time * group, width)
    row_positions = jnp.repeat(positions, group, axis=1)[:, None, :, None]

    def visit(start: jax.Array | int, carry: tuple[jax.Array, jax.Array, jax.Array]):
        highest, total, weighted = carry
        block_keys = jax.lax.dynamic_slice_in_dim(keys, start, block, axis=2)
        block_values = jax.lax.dynamic_slice_in_dim(values, start, block, axis=2)
        scores = _einsum("bkrd,bksd->bkrs", rows, block_keys, wide) * width**-0.5
        seen = start + jnp.arange(block) <= row_positions
        scores = jnp.where(seen, scores, -jnp.inf)
        new_highest = jnp.maximum(highest, scores.max(axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_highest)
        rescale = jnp.exp(highest - new_highest)
        total = total * rescale + weights.sum(axis=-1, keepdims=True)
        block_sum = _einsum("bkrs,bksd->bkrd", weights, block_values, wide)
        return new_highest, total, weighted * rescale + block_sum

    # Every query sees slot 0, so the maximum is finite from the first block on.
    carry = (
        jnp.full((batch, heads, time * group, 1), -jnp.inf, wide),
        jnp.zeros((batch, heads, time * group, 1), wide),
        jnp.zeros((batch, heads, time * group, width), wide),
    )
    if block == capacity:
        carry = visit(0, carry)
    else:
        blocks = jnp.max(positions) // block + 1
        carry = jax.lax.fori_loop(0, blocks, lambda i, carry: visit(i * block, carry), carry)
    _, total, weighted = carry
    out = (weighted / total).astype(queries.dtype)
    return out.reshape(batch, heads, time, group, width).transpose(0, 2, 1, 3, 4)


def _einsum(equation: str, left: jax.Array, cached: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """A product with a block of the cache, accumulated and returned in `dtype`.

    Accelerators multiply in the dtype of the cache. CPUs have no fast batched product of bfloat16: there the
    block is widened first, which is a quarter faster when several tokens are scored.
    """
    return jax.lax.platform_dependent(
        left,
        cached,
        cpu=lambda a, b: jnp.einsum(equation, a.astype(dtype), b.astype(dtype)),
        default=lambda a, b: jnp.einsum(equation, a.astype(b.dtype), b, preferred_element_type=dtype),
    )
