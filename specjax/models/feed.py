"""Taking text into a model's cache, in bounded chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

# `(state, features, next_tokens int32[B, T], start int32[B], count int32[B]) -> state`, as `Draft.absorb`.
Absorb = Callable[[Any, tuple[jax.Array, ...], jax.Array, jax.Array, jax.Array], Any]


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
    settings = {"start": start, "stop": stop, "chunk": chunk}
    return feed_tapped(model, cache, tokens, **settings, taps=(), absorb=lambda state, *_: state, state=())[0]


def feed_tapped(
    model: Any,
    cache: Any,
    tokens: jax.Array,
    *,
    start: jax.Array,
    stop: jax.Array,
    chunk: int,
    taps: tuple[int, ...],
    absorb: Absorb,
    state: Any,
) -> tuple[Any, Any]:
    """`feed`, in which someone else is handed the model's states chunk by chunk: no second pass for them.

    Args:
        taps: whose input states are handed over, see `LayeredModel`.
        absorb: is given `state`, the tapped states float[B, chunk, d] each, the tokens that follow, and which
            positions they stand for. Of a row's last token fed the next one must be among `tokens`.

    Returns:
        The cache and the state.
    """
    chex.assert_rank(tokens, 2)
    chex.assert_shape((start, stop), (tokens.shape[0],))
    steps = jnp.arange(chunk, dtype=jnp.int32)

    def at(positions: jax.Array) -> jax.Array:
        return jnp.take_along_axis(tokens, jnp.minimum(positions, tokens.shape[1] - 1), axis=1)

    def unfinished(carry: tuple[Any, Any, jax.Array]) -> jax.Array:
        return jnp.any(carry[2] < stop)

    def step(carry: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        cache, state, start = carry
        positions = start[:, None] + steps
        _, tapped, pending = model(at(positions), positions, cache, taps=taps)
        count = jnp.clip(stop - start, 0, chunk)
        state = absorb(state, tapped, at(positions + 1), start, count)
        return model.commit(cache, pending, start, count), state, start + count

    cache, state, _ = jax.lax.while_loop(unfinished, step, (cache, state, start))
    return cache, state
