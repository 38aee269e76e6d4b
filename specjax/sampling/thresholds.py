"""Top-k, top-p and min-p as thresholds: no sort, and every token tied at the border stays.

A filter keeps the tokens whose logit is at least some threshold. The threshold is found bit by bit on the
integer image of the floats, which preserves their order, so the kept set is exact rather than close. Sorting
a vocabulary costs an order of magnitude more on CPU, and unlike sort or cumsum, counts and sums of masks
work on a vocabulary sharded over devices.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def top_k_threshold(logits: jax.Array, k: jax.Array) -> jax.Array:
    """The k-th largest logit of each row.

    Args:
        logits: float32[..., V].
        k: int32[...], at least 1; more than V counts as V.

    Returns:
        float32[...]: keeping `logits >= threshold` keeps the k largest and whatever ties with the k-th.
    """
    keys = _ordered_keys(logits)
    k = jnp.clip(k, 1, logits.shape[-1])
    return _from_key(
        _largest_key(lambda key: jnp.sum(keys >= key[..., None], -1, dtype=jnp.int32) >= k, k.shape)
    )


def top_p_threshold(logits: jax.Array, p: jax.Array) -> jax.Array:
    """The smallest logit of the nucleus: the likeliest tokens that together reach probability `p`.

    A token stays when the tokens strictly likelier than it hold less than `p` (Holtzman et al., arXiv
    1904.09751); the likeliest always stays.

    Args:
        logits: float32[..., V]; -inf where already excluded.
        p: float32[...] in (0, 1].

    Returns:
        float32[...]
    """
    keys = _ordered_keys(logits)
    probabilities = jax.nn.softmax(logits, axis=-1)
    p = jnp.maximum(p, jnp.finfo(jnp.float32).tiny)  # XLA may flush less to 0, which an empty nucleus reaches

    def reaches_p(key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(keys >= key[..., None], probabilities, 0.0), -1) >= p

    return _from_key(_largest_key(reaches_p, p.shape))


def min_p_threshold(logits: jax.Array, min_p: jax.Array) -> jax.Array:
    """The logit of probability `min_p * max(probabilities)` (Nguyen et al., arXiv 2407.01082).

    Args:
        logits: float32[..., V].
        min_p: float32[...] in [0, 1].

    Returns:
        float32[...]
    """
    return jnp.max(logits, axis=-1) + jnp.log(min_p)


def _ordered_keys(logits: jax.Array) -> jax.Array:
    """uint32 images of float32 values, in the same order. Both zeros get the same image."""
    bits = jax.lax.bitcast_convert_type(jnp.where(logits == 0, 0.0, logits).astype(jnp.float32), jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))


def _from_key(key: jax.Array) -> jax.Array:
    """Inverse of `_ordered_keys`; keys below that of -inf give -inf."""
    bits = jnp.where(key >> 31 == 1, key & jnp.uint32((1 << 31) - 1), ~key)
    value = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def _largest_key(holds: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """The largest uint32 key for which the decreasing predicate `holds`, or 0; one bit a step, high first."""

    def set_bit(step: jax.Array, key: jax.Array) -> jax.Array:
        candidate = key | (jnp.uint32(1) << (31 - step).astype(jnp.uint32))
        return jnp.where(holds(candidate), candidate, key)

    return jax.lax.fori_loop(0, 32, set_bit, jnp.zeros(shape, jnp.uint32))
