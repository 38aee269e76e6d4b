"""One round: propose, score, process, verify, commit."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp

from specjax.decoding.config import FinishReason
from specjax.decoding.invariants import Violation, flags
from specjax.decoding.program import Program
from specjax.decoding.state import DecodeState, Stats, where_rows
from specjax.decoding.stop import find_end
from specjax.drafts import Outcome, Proposal, RoundContext
from specjax.drafts.protocol import propose_if_wanted
from specjax.models.layers import compute_dtype
from specjax.sampling import Noise, drawable, likeliest, log_law
from specjax.verify import verify


@dataclasses.dataclass(frozen=True)
class Block:
    """What a round adds to each row: `tokens` int32[B, T], of which the first `count` int32[B] are real."""

    tokens: jax.Array
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """What a round decides on.

    Attributes:
        proposal: batched.
        tokens, positions: int32[B, T], what is scored.
        features: float[B, T, d] for each of `Draft.taps`.
        raw, processed: float[B, T, V], the target's logits after each prefix of the draft.
        log_p: float[B, T, V], their log-law; zero where nothing needs it.
    """

    proposal: Proposal
    tokens: jax.Array
    positions: jax.Array
    features: tuple[jax.Array, ...]
    raw: jax.Array
    processed: jax.Array
    log_p: jax.Array


def decode_round(program: Program, target: Any, draft_module: Any, state: DecodeState) -> DecodeState:
    """Advances every running row by one round; finished rows stay exactly as they are.

    Args:
        target, draft_module: the merged modules.
    """
    noise = round_noise(program, state)
    scored, draft_carry, pending = score_round(program, target, draft_module, state, noise)
    greedy, proposal = state.request.sampling.greedy, scored.proposal
    n_accepted, next_token = verify(program.rule, scored.processed, scored.log_p, greedy, proposal, noise)

    # Commit.
    tokens = _assemble(proposal.tokens, n_accepted, next_token)
    block = Block(tokens, jnp.where(state.running, n_accepted + 1, 0))
    block, finish_reason = _cut(state, block, drawable(scored.raw, scored.processed))
    outcome = Outcome(
        scored=scored.tokens,
        live=proposal.live,
        accepted=jnp.minimum(n_accepted, block.count),
        emitted=block.tokens,
        count=block.count,
        length=state.length + block.count,
        features=scored.features,
        logits=scored.raw,
    )
    new = dataclasses.replace(
        state,
        tokens=_append(state, block),
        length=outcome.length,
        cached_length=state.cached_length + block.count,
        finish_reason=finish_reason,
        round=state.round + state.running.astype(jnp.int32),
        cache=pending
        if program.positional
        else target.commit(state.cache, pending, state.cached_length, block.count),
        draft=program.draft.commit(draft_module, draft_carry, proposal, outcome),
        processors=program.pipeline.advance_block(state.processors, block.tokens, block.count),
        policy=where_rows(outcome.count > 0, program.policy.update(state.policy, outcome), state.policy),
        stats=_count(state, proposal, outcome),
    )
    if program.config.logprobs:
        new = _record_logprobs(new, state, block, scored)
    checks = _cheap_checks(program, state, proposal, n_accepted, block)
    if program.config.debug:
        checks |= _costly_checks(program, state, new, scored, n_accepted, block)
    return dataclasses.replace(new, violations=state.violations | flags(checks))


def round_noise(program: Program, state: DecodeState) -> Noise:
    """The noise of every row's next round."""
    return Noise.of_round(state.request.seed, state.round, state.length, shared=program.rule.shares_noise)


def score_round(
    program: Program, target: Any, draft_module: Any, state: DecodeState, noise: Noise
) -> tuple[Scored, Any, Any]:
    """The first half of a round: propose, score, process.

    Returns:
        What the other half decides on, the draft's carry, and what the target's cache would become.
    """
    sampling = state.request.sampling
    context = round_context(program, target, state, noise)
    propose = functools.partial(propose_if_wanted, program.draft)
    if not program.policy.may_sit_out:
        propose = program.draft.propose
    proposal, draft_carry = propose(draft_module, state.draft, context)
    gamma = program.gamma
    chex.assert_shape(proposal.tokens, (state.length.shape[0], gamma))

    # Slots that are not live still hold real ids.
    drafted = jnp.clip(proposal.tokens, 0, program.vocab_size - 1)
    proposal = dataclasses.replace(proposal, tokens=drafted)
    last = jnp.take_along_axis(state.tokens, (state.length - 1)[:, None], axis=1)
    tokens = jnp.concatenate([last, drafted], axis=1)
    positions = state.cached_length[:, None] + jnp.arange(gamma + 1, dtype=jnp.int32)
    raw, features, pending = _score(program, target, state, tokens, positions, proposal.live)

    processed = program.pipeline.process_block(sampling, state.processors, raw, drafted)
    law_needed = jnp.any(~sampling.greedy) | program.config.logprobs
    log_p = jax.lax.cond(law_needed, lambda logits: log_law(sampling, logits), jnp.zeros_like, processed)
    scored = Scored(
        proposal=proposal,
        tokens=tokens,
        positions=positions,
        features=features,
        raw=raw,
        processed=processed,
        log_p=log_p,
    )
    return scored, draft_carry, pending


def _score(
    program: Program,
    target: Any,
    state: DecodeState,
    tokens: jax.Array,
    positions: jax.Array,
    live: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
    """Scores the last committed token and the draft tokens, in the smallest width that holds the live ones.

    Returns:
        Raw logits [B, T, V] and the features [B, T, d], zero for tokens that were not scored, and the
        target's pending cache.
    """

    def score(width: int) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        hidden, features, pending = target(
            tokens[:, :width], positions[:, :width], state.cache, taps=program.draft.taps
        )
        raw = target.logits(hidden)
        chex.assert_shape(raw, (tokens.shape[0], width, program.vocab_size))
        # In half precision logits and noise tie, and what is drawn has not the law that is reported.
        raw = raw.astype(compute_dtype(raw.dtype))
        if program.positional:
            scored = jnp.full_like(state.cached_length, width)
            pending = target.commit(state.cache, pending, state.cached_length, scored)
        missing = ((0, 0), (0, program.gamma + 1 - width), (0, 0))
        raw, features = jax.tree.map(lambda scored: jnp.pad(scored, missing), (raw, features))
        return raw, features, pending

    if len(program.widths) == 1:
        return score(program.gamma + 1)
    needed = jnp.max(live) + 1
    narrower = jnp.sum(needed > jnp.array(program.widths), dtype=jnp.int32)
    return jax.lax.switch(narrower, [functools.partial(score, width) for width in program.widths])


def round_context(program: Program, target: Any, state: DecodeState, noise: Noise) -> RoundContext:
    """What the draft may look at in every row's next round."""
    greedy = state.request.sampling.greedy
    draft_rows = state.request.draft_sampling
    generated = state.length - state.prompt_length
    # The round adds the target's own token, so the budget has room for one draft token less.
    useful = state.request.stop.max_new_tokens - generated - 1
    context = RoundContext(
        tokens=state.tokens,
        length=state.length,
        running=state.running,
        max_live=jnp.where(state.running, jnp.clip(useful, 0, program.gamma), 0),
        gamma=program.gamma,
        widths=program.widths,
        vocab_size=program.vocab_size,
        chunk=program.chunk,
        target=target,
        cache=state.cache,
        rows=dataclasses.replace(draft_rows, temperature=jnp.where(greedy, 0.0, draft_rows.temperature)),
        law_needed=jnp.any(~greedy),
        noise=noise,
        pipeline=program.pipeline,
        processor_states=state.processors,
        policy=program.policy,
        policy_state=state.policy,
    )
    return dataclasses.replace(context, max_live=program.policy.limit(state.policy, context))


def _assemble(drafted: jax.Array, n_accepted: jax.Array, next_token: jax.Array) -> jax.Array:
    """int32[B, T]: the accepted draft tokens, then the next token; what follows is not real."""
    slots = jnp.arange(drafted.shape[1] + 1, dtype=jnp.int32)
    padded = jnp.pad(drafted, ((0, 0), (0, 1)))
    return jnp.where(slots == n_accepted[:, None], next_token[:, None], padded)


def _cut(state: DecodeState, block: Block, sound: jax.Array) -> tuple[Block, jax.Array]:
    """Ends rows at EOS, stop sequence or budget, or with an error.

    Args:
        sound: bool[B, T], whether a token could be drawn at each position. A row that would emit one drawn
            where it could not ends with an error just before it, as plain decoding would; what lies behind
            the row's end is no text and counts for nothing.
    """
    stop = state.request.stop
    reach = stop.sequences.shape[-1] - 1
    source = state.length[:, None] + jnp.arange(-reach, 0, dtype=jnp.int32)
    generated = source >= state.prompt_length[:, None]
    history = jnp.where(generated, jnp.take_along_axis(state.tokens, jnp.maximum(source, 0), axis=1), -1)

    emitted, reason = find_end(stop, block.tokens, block.count, history, state.length - state.prompt_length)
    leading = jnp.sum(jnp.cumprod(sound, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    reason = jnp.where(leading < emitted, int(FinishReason.ERROR), reason)
    count = jnp.where(state.running, jnp.minimum(leading, emitted), 0)
    return Block(block.tokens, count), jnp.where(state.running, reason, state.finish_reason)


def _append(state: DecodeState, block: Block) -> jax.Array:
    slots = jnp.arange(block.tokens.shape[1], dtype=jnp.int32)
    places = jnp.where(slots < block.count[:, None], state.length[:, None] + slots, state.tokens.shape[1])
    return _set(state.tokens, places, block.tokens)


def _record_logprobs(new: DecodeState, old: DecodeState, block: Block, scored: Scored) -> DecodeState:
    assert old.logprobs is not None
    assert old.raw_logprobs is not None
    slots = jnp.arange(block.tokens.shape[1], dtype=jnp.int32)
    generated = (old.length - old.prompt_length)[:, None] + slots
    places = jnp.where(slots < block.count[:, None], generated, old.logprobs.shape[1])

    def of_emitted(log_probs: jax.Array) -> jax.Array:
        return jnp.take_along_axis(log_probs, block.tokens[..., None], axis=-1)[..., 0].astype(jnp.float32)

    return dataclasses.replace(
        new,
        logprobs=_set(old.logprobs, places, of_emitted(scored.log_p)),
        raw_logprobs=_set(old.raw_logprobs, places, of_emitted(jax.nn.log_softmax(scored.raw, axis=-1))),
    )


def _set(array: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    """Writes values [B, T] at places int32[B, T] of [B, N], row by row; places beyond the end are skipped."""
    return array.at[jnp.arange(array.shape[0])[:, None], places].set(values, mode="drop")


def _count(state: DecodeState, proposal: Proposal, outcome: Outcome) -> Stats:
    stats, running = state.stats, state.running
    slots = jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)
    live = jnp.where(running, proposal.live, 0)
    return Stats(
        rounds=stats.rounds + running.astype(jnp.int32),
        emitted=stats.emitted + outcome.count,
        drafted=stats.drafted + live,
        accepted=stats.accepted + outcome.accepted,
        drafted_at=stats.drafted_at + (slots < live[:, None]).astype(jnp.int32),
        accepted_at=stats.accepted_at + (slots < outcome.accepted[:, None]).astype(jnp.int32),
        draft_failures=stats.draft_failures + (running & proposal.failed).astype(jnp.int32),
    )


def _cheap_checks(
    program: Program, state: DecodeState, proposal: Proposal, n_accepted: jax.Array, block: Block
) -> dict[Violation, jax.Array]:
    useful = state.request.stop.max_new_tokens - (state.length - state.prompt_length)
    return {
        Violation.LIVE_RANGE: ~state.running
        | ((proposal.live >= 0) & (proposal.live <= program.gamma) & (proposal.live < useful)),
        Violation.ACCEPTED_RANGE: ~state.running | ((n_accepted >= 0) & (n_accepted <= proposal.live)),
        Violation.LENGTH_RANGE: (state.length + block.count <= program.capacity)
        & (block.count <= jnp.maximum(useful, 0)),
        Violation.FINISHED_MOVED: state.running | (block.count == 0),
    }


def _costly_checks(
    program: Program,
    old: DecodeState,
    new: DecodeState,
    scored: Scored,
    n_accepted: jax.Array,
    block: Block,
) -> dict[Violation, jax.Array]:
    """Checks that reread the text or the laws; the mask of a verified row follows from its position alone."""
    slots = jnp.arange(block.tokens.shape[1], dtype=jnp.int32)
    real = slots < block.count[:, None]
    positions = scored.positions
    best = likeliest(scored.processed)
    allowed = jnp.take_along_axis(scored.log_p, block.tokens[..., None], axis=-1)[..., 0] > -jnp.inf
    may_emit = jnp.where(old.request.sampling.greedy[:, None], block.tokens == best, allowed)
    is_draft = slots[:-1] < jnp.minimum(n_accepted, block.count)[:, None]
    follows_draft = jnp.all(~is_draft | (block.tokens[:, :-1] == scored.proposal.tokens), axis=1)
    committed = jnp.take_along_axis(
        new.tokens, jnp.minimum(old.length[:, None] + slots, new.tokens.shape[1] - 1), axis=1
    )
    written = jnp.all(~real | (committed == block.tokens), axis=1)

    beyond = jnp.arange(new.tokens.shape[1], dtype=jnp.int32) >= new.length[:, None]
    ahead = [
        cached > state.length - 1
        for state in (old, new)
        if (cached := program.draft.cached_length(state.draft)) is not None
    ]
    expected = (old.length - 1)[:, None] + slots
    cache_end = program.cache_capacity
    return {
        Violation.CACHE_LENGTH: new.cached_length == new.length - 1,
        Violation.DRAFT_AHEAD: ~jnp.any(jnp.stack([*ahead, jnp.zeros_like(old.running)]), axis=0),
        Violation.TEXT_AFTER_END: jnp.all(~beyond | (new.tokens == program.config.pad_id), axis=1),
        Violation.REJECTED_TOKEN: jnp.all(~real | may_emit, axis=1) & follows_draft & written,
        Violation.POSITIONS: jnp.all(positions == expected, axis=1) & (positions[:, -1] < cache_end),
    }
