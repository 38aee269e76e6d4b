"""Whether the compiled acceptance rule keeps the target's law, with the laws of a pair in real contexts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax.certify.acceptance import Acceptance, acceptance_tails
from specjax.certify.certificate import Check
from specjax.certify.contexts import Context, as_law, contexts_of
from specjax.certify.evidence import ChiSquare, fit, log_e_value, uniform_places
from specjax.certify.pair import Subject
from specjax.drafts import Draft, Proposal
from specjax.sampling import Noise
from specjax.verify import RULES, Rule

STAGE = "law"
_REDUCED = 12  # tokens that a joint law of two keeps apart; all others are one more
_WHOLE_EVERY, _WHOLE_FEWER = 4, 8  # a draw over a whole vocabulary costs a thousand of them
_BINS = 16  # of the e-value
_BATCH = 256  # draws at a time in one context


def check_laws(
    subject: Subject, name: str, draft: Draft, *, contexts: int, draws: int, level: float
) -> Iterator[Check]:
    """The law of the first token over the whole vocabulary, of the first two over a reduced one, acceptance.

    Laws are those of real contexts, and so is the block that the rule sees. What is drawn anew is all the
    rest: the proposal, from q, and whatever the rule draws, by the compiled rule itself. Two tokens are
    counted as if the second position's law did not depend on the first token: rules must be exact for every
    pair of laws, this one included.

    Args:
        contexts: how many. draws: in each, over the reduced vocabulary; in every fourth context also an
            eighth of them over the whole.
        level: probability of a false alarm in one test.
    """
    found = contexts_of(subject, draft, contexts)
    rule = RULES[subject.config.rule]
    whole, joint, acceptance = ChiSquare(), ChiSquare(), Acceptance()
    places = []
    for index, context in enumerate(found):
        # Every fourth, of another row each time.
        if (index + index // _WHOLE_EVERY) % _WHOLE_EVERY == 0:
            rounds = _play(rule, context, 2 * index, max(draws // _WHOLE_FEWER, 1))
            law = context.p[0]
            whole += fit(np.bincount(rounds.first, minlength=len(law)), law)
            places.append(uniform_places(rounds.first, law, _from_draft(law, context.drafted(0)), 2 * index))

        small = context.reduced(_REDUCED)
        size = small.p.shape[1]
        rounds = _play(rule, small, 2 * index + 1, draws)
        pairs = rounds.first * size + rounds.second
        law = np.outer(small.p[0], small.p[1]).ravel()
        drafted = np.outer(small.drafted(0), small.drafted(1)).ravel()
        joint += fit(np.bincount(pairs, minlength=len(law)), law)
        places.append(uniform_places(pairs, law, _from_draft(law, drafted), 2 * index + 1))
        if context.live:
            acceptance = acceptance.plus(rounds.accepted, acceptance_tails(rule, small, rounds.drafted))

    check = functools.partial(Check, stage=STAGE, draft=name)
    if not found:
        yield check(name="contexts with finite laws", passed=False, found="there is none")
        return
    for tokens, promise, table in (
        (1, "first token has the target's law, whole vocabulary", whole),
        (2, f"first two tokens have the target's law, {_REDUCED + 1} tokens apart", joint),
    ):
        detectable = table.detectable(level)
        yield check(
            name=promise,
            passed=table.p_value > level,
            found=f"p = {table.p_value:.2g} of {table.draws:,} draws; a total variation of {detectable:.3f} "
            f"between {table.freedom + table.tables:,} bins in {table.tables} contexts would have been found",
            values={
                **dataclasses.asdict(table),
                "p_value": table.p_value,
                "detectable": detectable,
                "tokens": tokens,
            },
        )
    yield _evidence_check(check, "no evidence against the law", places, level)
    yield check(
        name=f"acceptance is what the rule {rule.name!r} promises",
        passed=acceptance.p_value > level if acceptance.rounds else None,
        found=f"{acceptance.measured:.4f} accepted a round, {acceptance.expected:.4f} by the formula, with "
        f"{_REDUCED + 1} tokens apart (p <= {acceptance.p_value:.2g})"
        if acceptance.rounds
        else "no live draft token in these contexts",
        values={
            "measured": acceptance.measured,
            "expected": acceptance.expected,
            "rounds": acceptance.rounds,
        },
    )


def check_proposals(
    subject: Subject, name: str, draft: Draft, *, seeds: int, level: float
) -> Iterator[Check]:
    """Draft tokens are drawn from the law that the draft hands to the rule, at every slot.

    One round of real decoding is proposed again and again with other seeds. Each token is compared with the
    law of its slot after the tokens before it. Point-mass drafts, which have no such law, need no check: any
    way to choose a point is exact.
    """
    decoder = subject.decoder(draft)
    state = decoder.run_rounds(subject.start(decoder, subject.sampling), 1)
    places = []
    rows = len(subject.lengths)
    for batch in range(seeds):
        seed = jnp.arange(batch * rows, (batch + 1) * rows, dtype=jnp.uint32)
        request = dataclasses.replace(state.request, seed=seed)
        scored = decoder.score(dataclasses.replace(state, request=request))
        proposal = scored.proposal
        if proposal.log_q is None:
            return
        tokens, live = np.asarray(proposal.tokens), np.asarray(proposal.live)
        for row in np.flatnonzero(np.asarray(state.running)):
            for slot in range(live[row]):
                q, p = as_law(proposal.log_q[row, slot]), as_law(scored.log_p[row, slot])
                place_seed = (batch * rows + int(row)) * len(tokens[row]) + slot
                places.append(uniform_places(tokens[row, [slot]], q, _from_draft(q, p), place_seed))
    check = functools.partial(Check, stage=STAGE, draft=name)
    yield _evidence_check(check, "the draft draws from the law that it states", places, level)


def _evidence_check(
    check: Callable[..., Check], promise: str, places: list[np.ndarray], level: float
) -> Check:
    """Whether numbers that should be uniform are, in bins that all contexts share, by an e-value."""
    numbers = np.concatenate([np.empty(0), *places])
    if np.any(np.isnan(numbers)):
        evidence = np.inf
    else:
        counts, _ = np.histogram(numbers, bins=_BINS, range=(0, 1))
        evidence = log_e_value(counts, np.full(_BINS, 1 / _BINS))
    return check(
        name=promise,
        passed=evidence < -np.log(level) if len(numbers) else None,
        found=f"log e-value {evidence:.1f} of {len(numbers):,} draws; {-np.log(level):.1f} would reject",
        values={"log_e_value": evidence, "rejects_at": float(-np.log(level)), "draws": len(numbers)},
    )


def _from_draft(law: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Outcomes int[K], those first that the draft prefers over the target.

    What favours or shuns the draft's tokens then shifts the draws of every context the same way.
    """
    return np.argsort(law / np.maximum(drafted, np.finfo(float).tiny), kind="stable")


@dataclasses.dataclass(frozen=True)
class _Rounds:
    """What came of rounds in one context: int[N, gamma] drafted, and int[N] each of the others."""

    drafted: np.ndarray
    first: np.ndarray
    second: np.ndarray
    accepted: np.ndarray


def _play(rule: Rule, context: Context, stream: int, count: int) -> _Rounds:
    """Rounds of the compiled rule, each with a seed of its own."""
    log_p = jnp.log(jnp.asarray(context.p, jnp.float32))
    log_q = None if context.q is None else jnp.log(jnp.asarray(context.q, jnp.float32))
    proposal = Proposal(
        jnp.asarray(context.tokens, jnp.int32), jnp.int32(context.live), log_q, jnp.bool_(False)
    )
    batches = []
    for start in range(0, count, _BATCH):
        # Always a whole batch, so that one program serves.
        seeds = np.arange(start, start + _BATCH, dtype=np.uint32) + np.uint32(stream << 20)
        batches.append(jax.device_get(_rounds(rule, log_p, proposal, seeds)))
    columns = [np.concatenate(column)[:count] for column in zip(*batches, strict=True)]
    return _Rounds(*columns)


@functools.partial(jax.jit, static_argnums=0)
def _rounds(rule: Rule, log_p: jax.Array, proposal: Proposal, seeds: jax.Array) -> tuple[jax.Array, ...]:
    """Drafted, first, second and accepted tokens of one round for each seed uint32[N]."""
    gamma, vocab_size = log_p.shape[0] - 1, log_p.shape[1]

    def play(seed: jax.Array) -> tuple[jax.Array, ...]:
        noise = Noise.of_round(seed, jnp.int32(0), jnp.int32(0), shared=rule.shares_noise)
        drawn = proposal
        if proposal.log_q is not None:
            gumbel = [noise.proposal_gumbel(slot, vocab_size, log_p.dtype) for slot in range(gamma)]
            tokens = jnp.argmax(proposal.log_q + jnp.stack(gumbel), axis=-1).astype(jnp.int32)
            drawn = dataclasses.replace(proposal, tokens=tokens)
        accepted, following = rule.apply(log_p, drawn, noise)
        # Plain decoding goes on, with noise of a round that the rule has not seen.
        later = Noise.of_round(seed, jnp.int32(1), jnp.int32(1))
        plain = jnp.argmax(log_p[1] + later.replacement_gumbel(vocab_size, log_p.dtype)).astype(jnp.int32)
        tokens = jnp.append(drawn.tokens, 0)
        first = jnp.where(accepted > 0, tokens[0], following)
        second = jnp.where(accepted > 1, tokens[1], jnp.where(accepted == 1, following, plain))
        return drawn.tokens, first, second, accepted

    return jax.vmap(play)(seeds)
