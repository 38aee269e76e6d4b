"""Taking prompts in: a new state, or the continuation of an old one."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp

from specjax.decoding.config import FinishReason
from specjax.decoding.program import Program
from specjax.decoding.state import DecodeState, Request, Stats, where_rows
from specjax.models.feed import feed_tapped


def start(
    program: Program, target: Any, draft_module: Any, prompts: jax.Array, lengths: jax.Array, request: Request
) -> DecodeState:
    """A state ready for its first round.

    Args:
        prompts: int32[B, P], right-padded. lengths: int32[B].
    """
    empty = _empty(program, target, draft_module, prompts.shape[0], request)
    return admit(program, target, draft_module, empty, prompts, lengths, request)


def admit(
    program: Program,
    target: Any,
    draft_module: Any,
    state: DecodeState,
    prompts: jax.Array,
    lengths: jax.Array,
    request: Request,
) -> DecodeState:
    """Appends prompts to the text of rows and makes those rows run.

    Caches take in what they lack, so nothing that was decoded is computed again. Rows with length 0 stay as
    they are, and so does a row that ended with an error. A row whose values make no sense ends with an error
    at once: they may be traced, so that nobody could look at them before.

    Args:
        prompts: int32[B, P], right-padded. lengths: int32[B].
        request: what the extended rows are asked for now.
    """
    batch, width = prompts.shape
    chex.assert_shape(lengths, (batch,))
    chex.assert_type((prompts, lengths), jnp.int32)
    steps = jnp.arange(width, dtype=jnp.int32)
    real = steps < lengths[:, None]
    budget = request.stop.max_new_tokens

    fresh = state.length == 0
    extended = ((lengths != 0) | fresh) & (state.finish_reason != int(FinishReason.ERROR))
    invalid = (lengths < 1) | (lengths > width)
    invalid |= jnp.any(real & ((prompts < 0) | (prompts >= program.vocab_size)), axis=1)
    invalid |= (budget < 0) | (budget > program.config.max_new_tokens)
    invalid |= state.length + lengths + budget > program.longest
    invalid |= request.sampling.invalid(program.vocab_size) | request.draft_sampling.invalid(
        program.vocab_size
    )
    # Rounds still run over an invalid row, so its text must exist: one harmless token.
    counted = jnp.where(invalid, fresh.astype(jnp.int32), lengths)
    appended = jnp.where(extended, counted, 0)

    places = jnp.where(steps < appended[:, None], state.length[:, None] + steps, state.tokens.shape[1])
    prompts = jnp.clip(prompts, 0, program.vocab_size - 1)
    tokens = state.tokens.at[jnp.arange(batch)[:, None], places].set(prompts, mode="drop")
    length = state.length + appended
    reason = jnp.where(budget > 0, int(FinishReason.RUNNING), int(FinishReason.LENGTH))
    reason = jnp.where(invalid, int(FinishReason.ERROR), reason)

    where_extended = functools.partial(where_rows, extended)
    needed = jnp.where(extended, length - 1, state.cached_length)
    draft = program.draft
    cache, carry = feed_tapped(
        target,
        state.cache,
        tokens,
        start=state.cached_length,
        stop=needed,
        chunk=program.chunk,
        taps=draft.taps,
        absorb=functools.partial(draft.absorb, draft_module),
        state=state.draft,
    )
    needed_by_draft = jnp.where(extended, length, 0)
    return dataclasses.replace(
        state,
        tokens=tokens,
        length=length,
        prompt_length=jnp.where(extended, length, state.prompt_length),
        cached_length=jnp.maximum(needed, state.cached_length),
        finish_reason=jnp.where(extended, reason, state.finish_reason).astype(jnp.int32),
        request=where_extended(request, state.request),
        cache=cache,
        draft=draft.prefill(draft_module, carry, tokens, needed_by_draft, program.chunk),
        processors=where_extended(
            program.pipeline.init(tokens, length, program.vocab_size), state.processors
        ),
        logprobs=where_extended(jax.tree.map(jnp.zeros_like, state.logprobs), state.logprobs),
        raw_logprobs=where_extended(jax.tree.map(jnp.zeros_like, state.raw_logprobs), state.raw_logprobs),
        stats=where_extended(jax.tree.map(jnp.zeros_like, state.stats), state.stats),
    )


def _empty(program: Program, target: Any, draft_module: Any, batch: int, request: Request) -> DecodeState:
    """A state without text."""
    config = program.config

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros((batch, *shape), jnp.int32)

    tokens = jnp.full((batch, program.capacity), config.pad_id, jnp.int32)
    logprobs = jnp.zeros((batch, config.max_new_tokens), jnp.float32) if config.logprobs else None
    return DecodeState(
        tokens=tokens,
        length=zeros(),
        prompt_length=zeros(),
        cached_length=zeros(),
        finish_reason=zeros(),
        round=zeros(),
        request=request,
        cache=target.init_cache(batch, program.cache_capacity),
        draft=program.draft.init(draft_module, batch, program.cache_capacity, program.vocab_size),
        processors=program.pipeline.init(tokens, zeros(), program.vocab_size),
        policy=program.policy.init(batch, program.gamma),
        logprobs=logprobs,
        raw_logprobs=logprobs,
        violations=jnp.zeros(batch, jnp.uint32),
        stats=Stats(
            rounds=zeros(),
            emitted=zeros(),
            drafted=zeros(),
            accepted=zeros(),
            drafted_at=zeros(program.gamma),
            accepted_at=zeros(program.gamma),
            draft_failures=zeros(),
        ),
    )
