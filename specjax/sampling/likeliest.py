"""The token with the largest logit."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def likeliest(logits: jax.Array) -> jax.Array:
    """`argmax` over the last axis: the lowest index of the largest.

    On CPU XLA compiles an argmax to a scalar loop, several times slower than two reductions: the maximum, and
    the lowest index that has it.

    Args:
        logits: float[..., V]. Where one is NaN the index means nothing, but is one.

    Returns:
        int32[...]
    """
    return jax.lax.platform_dependent(logits, cpu=_by_two_reductions, default=_by_argmax)


def _by_argmax(logits: jax.Array) -> jax.Array:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _by_two_reductions(logits: jax.Array) -> jax.Array:
    # Both read them: noise that they are the sum of must not be drawn twice.
    logits = jax.lax.optimization_barrier(logits)
    last = logits.shape[-1] - 1
    indices = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(logits == largest, indices, last), axis=-1)
