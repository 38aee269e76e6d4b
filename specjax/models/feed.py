"""Taking text into a model's cache, in bounded chunks."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp


def feed(model: Any, cache: Any, tokens: jax.Array, *, start: jax.Array, stop: jax.Array, chunk: int) -> Any:
    """Extends each row's cache from `start` to `stop` tokens.

    Rows proceed `chunk` tokens at a time, each from its own offset, until the longest is done; scratch
    beyond `stop` is written and never committed, so the capacity must be at least `max(stop) + chunk`. The
    pieces a row is cut into depend on that row alone.

    Args:
        model: a `ScoringModel`.
        tokens: int32[B, N]. start, stop: int32[B]; where `stop <= start` nothing happens.
        chunk: static.

    Returns:
        The cache.
    """
    chex.assert_rank(tokens, 2)
    chex.assert_shape((start, stop), (tokens.shape[0],))
    steps = jnp.arange(chunk, dtype=jnp.int32)

    def unfinished(carry: tuple[Any, jax.Array]) -> jax.Array:
        return jnp.any(carry[1] < stop)

    def step(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        cache, start = carry
        positions = start[:, None] + steps
        block = jnp.take_along_axis(tokens, jnp.minimum(positions, tokens.shape[1] - 1), axis=1)
        _, _, pending = model(block, positions, cache)
        count = jnp.clip(stop - start, 0, chunk)
        return model.commit(cache, pending, start, count), start + count

    return jax.lax.while_loop(unfinished, step, (cache, start))[0]
