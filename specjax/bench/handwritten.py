"""Greedy decoding as one would write it by hand: what the library's generality costs beside it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models.feed import feed


class HandWritten:
    """Prefill and a `lax.while_loop` over the model's own methods, with nothing between.

    No drafts, sampling, penalties, stop sequences, budgets of rows, statistics or checks: each step feeds the
    last token of every row and takes the likeliest next one.

    Args:
        model: a `specjax.models.ScoringModel`.
        new_tokens: to be generated at most. prefill_chunk: prompt tokens scored at a time.
    """

    def __init__(self, model: nnx.Module, new_tokens: int, prefill_chunk: int = 128) -> None:
        graphdef, split = nnx.split(model)

        def prefill(weights: Any, prompts: jax.Array, lengths: jax.Array) -> tuple[Any, ...]:
            model: Any = nnx.merge(graphdef, weights)
            batch, width = prompts.shape
            chunk = min(prefill_chunk, width)
            cache = model.init_cache(batch, width + new_tokens + chunk)
            start = jnp.zeros_like(lengths)
            cache = feed(model, cache, prompts, start=start, stop=lengths - 1, chunk=chunk)
            last = jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)
            return jnp.int32(0), last, lengths - 1, cache, jnp.zeros((batch, new_tokens), jnp.int32)

        def run(weights: Any, state: tuple[Any, ...], limit: jax.Array) -> tuple[Any, ...]:
            model: Any = nnx.merge(graphdef, weights)

            def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
                count, last, cached, cache, out = state
                hidden, _, pending = model(last, cached[:, None], cache)
                cache = model.commit(cache, pending, cached, jnp.ones_like(cached))
                last = jnp.argmax(model.logits(hidden), axis=-1).astype(jnp.int32)
                return count + 1, last, cached + 1, cache, jax.lax.dynamic_update_slice(out, last, (0, count))

            return jax.lax.while_loop(lambda state: state[0] < limit, step, state)

        self.prefill = functools.partial(jax.jit(prefill), split)
        self.run = functools.partial(jax.jit(run, donate_argnums=1), split)
