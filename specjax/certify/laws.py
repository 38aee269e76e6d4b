"""Whether the compiled acceptance rule keeps the target's law, with the laws of a pair in real contexts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from specjax.certify.certificate import Check
from specjax.certify.evidence import ChiSquare, fit, log_e_value, uniform_places
from specjax.certify.pair import Subject
from specjax.drafts import Draft, Proposal
from specjax.sampling import Noise
from specjax.verify import RULES, Rule

STAGE = "law"
_REDUCED = 12  # tokens that a joint law of two keeps apart; all others are one more
_WHOLE_EVERY, _WHOLE_FEWER = 4, 8  # a draw over a whole vocabulary costs a thousand of them
_BINS = 16  # of the e-value
_ROUNDS_BETWEEN = 3
_STANDARD_ERRORS = 5.0
_BATCH = 256  # draws at a time in one context


@dataclasses.dataclass(frozen=True)
class Context:
    """The laws of one row in one round of real decoding.

    Attributes:
        p: float64[T, V], the target's after each prefix of the draft.
        q: float64[gamma, V], the draft's; None for a point mass.
        tokens: int[gamma], what was drafted. live: how many of them count.
    """

    p: np.ndarray
    q: np.ndarray | None
    tokens: np.ndarray
    live: int

    def drafted(self, slot: int) -> np.ndarray:
        """float64[V], the law that the token in a slot is drafted from; 0 where none is."""
        if slot >= self.live:
            return np.zeros(self.p.shape[1])
        if self.q is None:
            return (np.arange(self.p.shape[1]) == self.tokens[slot]).astype(float)
        return self.q[slot]

    def reduced(self, size: int) -> Context:
        """The same with a vocabulary of the `size` likeliest tokens, and one more for all others together."""
        weight = self.p[:2].sum(axis=0) + (0 if self.q is None else self.q[:2].sum(axis=0))
        kept = np.argsort(-weight, kind="stable")[:size]

        def merged(law: np.ndarray) -> np.ndarray:
            some = law[:, kept]
            return np.append(some, np.maximum(law.sum(axis=1) - some.sum(axis=1), 0)[:, None], axis=1)

        places = np.full(self.p.shape[1], len(kept))
        places[kept] = np.arange(len(kept))
        q = None if self.q is None else merged(self.q)
        return Context(merged(self.p), q, places[self.tokens], self.live)


def contexts_of(subject: Subject, draft: Draft, count: int) -> list[Context]:
    """Contexts from rounds of sampled decoding, of every prompt in turn, until there are `count`."""
    decoder = subject.decoder(draft)
    state = subject.start(decoder, subject.sampling)
    contexts: list[Context] = []
    while len(contexts) < count and np.any(np.asarray(state.running)):
        scored = jax.device_get(decoder.score(state))
        proposal = scored.proposal
        for row in np.flatnonzero(np.asarray(state.running)):
            p = _law(scored.log_p[row])
            q = None if proposal.log_q is None else _law(proposal.log_q[row])
            live = int(proposal.live[row])
            if np.all(np.isfinite(p)) and (q is None or np.all(np.isfinite(q[:live]))):
                contexts.append(Context(p, q, proposal.tokens[row], live))
        state = decoder.run_rounds(state, _ROUNDS_BETWEEN)
    return contexts[:count]


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
        if index % _WHOLE_EVERY == 0:
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
            acceptance += Acceptance.of(rounds.accepted, expected_accepted(rule, small, rounds.drafted))

    if not found:
        yield Check(
            stage=STAGE, name="contexts with finite laws", draft=name, passed=False, found="there is none"
        )
        return
    for promise, table in (
        ("first token has the target's law, whole vocabulary", whole),
        (f"first two tokens have the target's law, {_REDUCED + 1} tokens apart", joint),
    ):
        detectable = table.detectable(level)
        yield Check(
            stage=STAGE,
            name=promise,
            draft=name,
            passed=table.p_value > level,
            found=f"p = {table.p_value:.2g} of {table.draws:,} draws in {len(found)} contexts; "
            f"a total variation of {detectable:.3f} would have been found",
            values={**dataclasses.asdict(table), "p_value": table.p_value, "detectable": detectable},
        )
    evidence = _evidence(np.concatenate(places))
    yield Check(
        stage=STAGE,
        name="no evidence against the law, at any time",
        draft=name,
        passed=evidence < -np.log(level),
        found=f"log e-value {evidence:.1f}; {-np.log(level):.1f} would reject",
        values={"log_e_value": evidence, "rejects_at": float(-np.log(level))},
    )
    yield Check(
        stage=STAGE,
        name=f"acceptance is what the rule {rule.name!r} promises",
        draft=name,
        passed=acceptance.errors < _STANDARD_ERRORS,
        found=f"{acceptance.measured:.4f} accepted a round, {acceptance.expected:.4f} by the formula "
        f"({acceptance.errors:.1f} standard errors)"
        if acceptance.rounds
        else "no live draft token in these contexts",
        values={
            "measured": acceptance.measured,
            "expected": acceptance.expected,
            "rounds": acceptance.rounds,
        },
    )


def _from_draft(law: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """Outcomes int[K], those first that the draft prefers over the target.

    What favours or shuns the draft's tokens then shifts the draws of every context the same way.
    """
    return np.argsort(law / np.maximum(drafted, np.finfo(float).tiny), kind="stable")


def _evidence(places: np.ndarray) -> float:
    """Log e-value of uniform numbers, in bins that all contexts share."""
    if np.any(np.isnan(places)):
        return np.inf
    counts, _ = np.histogram(places, bins=_BINS, range=(0, 1))
    return log_e_value(counts, np.full(_BINS, 1 / _BINS))


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Accepted tokens of rounds against the expectation that each round had.

    Attributes:
        total, predicted: sums over `rounds`. squares: of the differences.
    """

    total: float = 0.0
    predicted: float = 0.0
    squares: float = 0.0
    rounds: int = 0

    @classmethod
    def of(cls, accepted: np.ndarray, expected: np.ndarray) -> Acceptance:
        difference = accepted - expected
        return cls(
            float(accepted.sum()), float(expected.sum()), float(difference @ difference), len(accepted)
        )

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            *(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )

    @property
    def measured(self) -> float:
        return self.total / max(self.rounds, 1)

    @property
    def expected(self) -> float:
        return self.predicted / max(self.rounds, 1)

    @property
    def errors(self) -> float:
        """Standard errors between the two; float32 may move a certain acceptance by a millionth."""
        rounding = 1e-6 * self.rounds
        excess = max(abs(self.total - self.predicted) - rounding, 0.0)
        return float(excess / np.sqrt(max(self.squares, 1e-12)))


def expected_accepted(rule: Rule, context: Context, tokens: np.ndarray) -> np.ndarray:
    """Accepted tokens expected of each drafted block int[N, gamma], from formulas of the papers.

    Written a second time, in float64 and with probabilities instead of logarithms.
    """
    live, p = context.live, context.p
    slots = np.arange(live)
    p_of = p[slots, tokens[:, :live]]
    if rule.name == "coupled":
        return _coupled_accepted(context, tokens)
    q_of = np.ones_like(p_of) if context.q is None else context.q[slots, tokens[:, :live]]
    ratio = p_of / np.maximum(q_of, np.finfo(float).tiny)
    if rule.name == "token" or context.q is None:
        return np.cumprod(np.minimum(ratio, 1), axis=1).sum(axis=1)
    survives = np.ones(len(tokens))
    h = np.empty_like(ratio)
    for slot in slots:
        survives = np.minimum(1, survives * ratio[:, slot])
        if slot == live - 1:
            h[:, slot] = survives
            continue
        left = np.maximum(survives[:, None] * p[slot + 1] - context.q[slot + 1], 0).sum(axis=1)
        rest = left + 1 - survives
        h[:, slot] = np.where(rest > 0, left / np.where(rest > 0, rest, 1), 1)
    # Prefix i or a longer one passes unless all of them fail.
    fails = np.cumprod(1 - h[:, ::-1], axis=1)[:, ::-1]
    return (1 - fails).sum(axis=1)


def _coupled_accepted(context: Context, tokens: np.ndarray) -> np.ndarray:
    """The first k draws agree with the product of the probabilities that one does."""
    p, live = context.p[: context.live], context.live
    if context.q is None:
        agree = p[np.arange(live), tokens[0, :live]]
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [
                np.maximum(own[None, :] / own[:, None], other[None, :] / other[:, None])
                for own, other in zip(p, context.q[:live], strict=True)
            ]
        agree = np.array([np.nansum(1 / ratio.sum(axis=1)) for ratio in ratios])
    return np.full(len(tokens), np.cumprod(agree).sum())


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


def _law(log_law: jax.Array) -> np.ndarray:
    """Probabilities float64 that add up to 1, which float32 ones do only nearly."""
    law = np.exp(np.asarray(log_law, np.float64))
    return law / law.sum(axis=-1, keepdims=True)
