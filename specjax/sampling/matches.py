"""Where a text has said before what it says last."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def match_lengths(tokens: jax.Array, length: jax.Array, longest: jax.Array | int) -> jax.Array:
    """How many tokens up to each position agree with the last tokens of the text.

    For text `a b c a b` (length 5): `[0, 2, 0, 0, -]`: the text up to position 1 ends with `a b`, as the
    whole does. The last position itself is no match.

    Args:
        tokens: int32[B, N]. length: int32[B], at least 1. longest: int32[], compare at most this many.

    Returns:
        int32[B, N]
    """
    width = tokens.shape[1]
    positions = jnp.arange(width, dtype=jnp.int32)
    padded = jnp.pad(tokens, ((0, 0), (width, 0)), constant_values=-1)

    def compare(back: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """One token further back, at all positions at once."""
        agrees, matched = carry
        last = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0)[:, None], axis=1)
        earlier = jax.lax.dynamic_slice_in_dim(padded, width - back, width, axis=1)
        agrees &= (earlier == last) & (length > back)[:, None]
        return agrees, matched + agrees

    before_last = jnp.broadcast_to(positions < length[:, None] - 1, tokens.shape)
    nothing = jnp.zeros(tokens.shape, jnp.int32)
    return jax.lax.fori_loop(0, jnp.minimum(longest, width), compare, (before_last, nothing))[1]
