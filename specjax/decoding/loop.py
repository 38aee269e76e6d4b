"""The loop: rounds until every row is finished, as one `lax.while_loop`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax.decoding.program import Program
from specjax.decoding.round import decode_round
from specjax.decoding.state import DecodeState, GenerateResult


def run_rounds(
    program: Program, target: Any, draft_module: Any, state: DecodeState, limit: jax.Array | int | None = None
) -> DecodeState:
    """Rounds until every row is finished, or `limit` of them."""

    def unfinished(carry: tuple[jax.Array, DecodeState]) -> jax.Array:
        done, state = carry
        within = jnp.bool_(True) if limit is None else done < limit
        return within & jnp.any(state.running)

    def step(carry: tuple[jax.Array, DecodeState]) -> tuple[jax.Array, DecodeState]:
        done, state = carry
        return done + 1, decode_round(program, target, draft_module, state)

    return jax.lax.while_loop(unfinished, step, (jnp.int32(0), state))[1]


def result(program: Program, state: DecodeState) -> GenerateResult:
    """What the rows have generated so far."""
    width = program.config.max_new_tokens
    steps = jnp.arange(width, dtype=jnp.int32)
    lengths = state.length - state.prompt_length
    source = jnp.minimum(state.prompt_length[:, None] + steps, state.tokens.shape[1] - 1)
    generated = jnp.take_along_axis(state.tokens, source, axis=1)
    return GenerateResult(
        tokens=jnp.where(steps < lengths[:, None], generated, program.config.pad_id),
        lengths=lengths,
        finish_reasons=state.finish_reason,
        logprobs=state.logprobs,
        raw_logprobs=state.raw_logprobs,
        violations=state.violations,
        stats=state.stats,
    )
