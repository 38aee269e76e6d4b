"""The exact law of what an acceptance rule emits, by enumeration."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafts import Proposal
from specjax.verify import RuleFunction

Law = Callable[[tuple[int, ...]], np.ndarray]  # float64[V], the law of the next token after a prefix

_BISECTIONS = 64
_NEVER = np.inf  # a log u above every threshold: no such u is ever drawn
_LOWEST = -800.0  # log of less than any probability in float64


@dataclasses.dataclass(frozen=True)
class RuleOutcome:
    """What a rule does, exactly.

    Attributes:
        law: float64[V, ..., V], of the first gamma + 1 tokens.
        expected_accepted: draft tokens accepted in the round, on average.
    """

    law: np.ndarray
    expected_accepted: float


def enumerate_rule(
    rule: RuleFunction,
    target: Law,
    draft: Law,
    gamma: int,
    *,
    live: Callable[[tuple[int, ...]], int] | None = None,
    point_mass: bool = False,
) -> RuleOutcome:
    """What comes of one round under `rule`, followed by plain decoding up to gamma + 1 tokens.

    Every draft is enumerated, and every outcome of the uniform numbers, in float64. The rule is taken as it
    is: its thresholds on u, and the weights from which it draws the last token, are found by bisection on the
    noise it is given. An exact rule emits the target's own law, `exact_law`.

    The rule must compare each slot's u with a threshold of that slot, whatever the others' u, and draw the
    last token as an argmax over logits plus Gumbel noise; this is not checked. (`verify_coupled` does
    neither, and needs no enumeration: it emits the target's own draws.)

    Args:
        target, draft: laws after a prefix of drafted tokens. Zeros are allowed.
        gamma: draft tokens, at least 1. Cost grows as (2V)^gamma; V = 4 and gamma = 3 take some seconds.
        live: how many of the drafted tokens are live; all by default.
        point_mass: the draft proposes with these probabilities but hands the rule no `log_q`.

    Raises:
        ValueError: gamma is less than 1, or a law is none: it has a negative value, or its sum is not 1.
    """
    if gamma < 1:
        raise ValueError(f"gamma is {gamma}; expected at least 1")
    vocab_size = len(target(()))
    drafts = list(itertools.product(range(vocab_size), repeat=gamma))
    p, q = (
        np.array([[law(drafted[:slot]) for slot in range(stop)] for drafted in drafts])
        for law, stop in ((target, gamma + 1), (draft, gamma))
    )
    for name, laws in (("target", p), ("draft", q)):
        bad = np.argwhere((laws < 0).any(axis=-1) | ~np.isclose(laws.sum(axis=-1), 1, rtol=0, atol=1e-9))
        if len(bad):
            index, slot = bad[0]
            raise ValueError(
                f"{name}({drafts[index][:slot]}) is {laws[index, slot]}; expected a law, of sum 1"
            )
    weights = np.prod(np.take_along_axis(q, np.array(drafts)[..., None], axis=-1)[..., 0], axis=-1)
    counts = np.array([gamma if live is None else live(drafted) for drafted in drafts])
    passes = np.array(list(itertools.product((False, True), repeat=gamma)))
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        outcomes = _outcomes(rule, np.log(p), None if point_mass else np.log(q), drafts, counts, passes)
    thresholds, accepted, last = map(np.asarray, outcomes)

    law = np.zeros((vocab_size,) * (gamma + 1))
    expected_accepted = 0.0
    for index, drafted in enumerate(drafts):
        for outcome, passed in enumerate(passes):
            h = np.exp(thresholds[index])
            reached = weights[index] * np.prod(np.where(passed, h, 1 - h))
            if reached == 0:
                continue
            expected_accepted += reached * accepted[index, outcome]
            kept = drafted[: accepted[index, outcome]]
            for token, probability in enumerate(last[index, outcome]):
                _spread(law, (*kept, token), reached * probability, target)
    return RuleOutcome(law, float(expected_accepted))


def exact_law(target: Law, length: int) -> np.ndarray:
    """The law of the target's first `length` tokens, float64[V, ..., V]."""
    law = np.zeros((len(target(())),) * length)
    _spread(law, (), 1.0, target)
    return law


def total_variation(left: np.ndarray, right: np.ndarray) -> float:
    """Half the sum of absolute differences of two laws."""
    return float(np.abs(left - right).sum() / 2)


def _spread(law: np.ndarray, text: tuple[int, ...], mass: float, target: Law) -> None:
    """Adds the mass of a text to its continuations by plain decoding."""
    if len(text) == law.ndim:
        law[text] += mass
        return
    for token, probability in enumerate(target(text)):
        if probability > 0:
            _spread(law, (*text, token), mass * probability, target)


class _Chosen:
    """Noise that an enumeration chooses."""

    def __init__(self, log_u: jax.Array, gumbel: jax.Array) -> None:
        self._log_u, self._gumbel = log_u, gumbel

    def accept_log_uniform(self, slots: int, dtype: jnp.dtype) -> jax.Array:
        return self._log_u.astype(dtype)

    def replacement_gumbel(self, size: int, dtype: jnp.dtype) -> jax.Array:
        return self._gumbel.astype(dtype)


@functools.partial(jax.jit, static_argnums=0)
def _outcomes(rule, log_p, log_q, drafts, live, passes):
    """For each draft the log thresholds of u, and for each of `passes` what is accepted and what follows."""
    gamma, vocab_size = log_p.shape[1] - 1, log_p.shape[2]
    slots = jnp.arange(gamma)

    def of_draft(log_p, log_q, drafted, live):
        proposal = Proposal(drafted.astype(jnp.int32), live.astype(jnp.int32), log_q, jnp.bool_(False))

        def apply(log_u, gumbel):
            return rule(log_p, proposal, _Chosen(log_u, gumbel))

        def threshold(slot):
            """The largest log u with which `slot` passes, those before it passing, those behind it not."""

            def passes_at(log_u):
                chosen = jnp.where(slots < slot, -jnp.inf, _NEVER)
                chosen = jnp.where(slots == slot, log_u, chosen)
                return apply(chosen, jnp.zeros(vocab_size))[0] > slot

            found = _largest(passes_at, _LOWEST, 0.0)
            return jnp.where(passes_at(0.0), 0.0, jnp.where(passes_at(_LOWEST), found, -jnp.inf))

        def outcome(passed):
            log_u = jnp.where(passed, -jnp.inf, _NEVER)
            accepted, base = apply(log_u, jnp.zeros(vocab_size))

            def log_weight(token):
                """How much likelier than a token the likeliest is: the handicap with which it still wins."""

                def wins(handicap):
                    gumbel = jnp.full(vocab_size, _LOWEST * 1e3).at[base].set(handicap).at[token].set(0.0)
                    return apply(log_u, gumbel)[1] == token

                return jnp.where(wins(_LOWEST), _largest(wins, _LOWEST, 0.0), -jnp.inf)

            log_weights = jax.vmap(log_weight)(jnp.arange(vocab_size)).at[base].set(0.0)
            return accepted, jax.nn.softmax(log_weights)

        accepted, last = jax.vmap(outcome)(passes)
        return jax.vmap(threshold)(slots), accepted, last

    in_axes = (0, None if log_q is None else 0, 0, 0)
    return jax.vmap(of_draft, in_axes)(log_p, log_q, jnp.array(drafts), jnp.array(live))


def _largest(holds: Callable[[jax.Array], jax.Array], low: float, high: float) -> jax.Array:
    """The largest number between `low`, where a condition holds, and `high`, where it does not."""

    def halve(_: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        return jnp.where(holds(middle), middle, low), jnp.where(holds(middle), high, middle)

    ends = (jnp.asarray(low, jnp.float64), jnp.asarray(high, jnp.float64))
    return jax.lax.fori_loop(0, _BISECTIONS, halve, ends)[0]
