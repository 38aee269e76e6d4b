"""What speculation should gain: the tokens of a round over its time.

A round drafts, verifies and does the rest, and emits the accepted draft tokens and one of the target's own:

    T = draft + verify + overhead                 seconds of a round
    E[N] = 1 + sum_i P(first i accepted)          tokens of a round, i = 1..gamma
    T / E[N]                                      seconds of a token
    plain E[N] / T                                speed-up over plain decoding, `plain` seconds a token

If every draft token that is reached is accepted with the same probability a, independently,
E[N] = (1 - a^(gamma + 1)) / (1 - a). (Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding", arXiv 2211.17192, sections 3.1 and 3.4.)
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundTime:
    """Seconds of one round, or milliseconds, or any other unit, the same for all.

    Attributes:
        draft: proposing gamma tokens.
        verify: the target's forward pass over the tokens scored.
        overhead: everything else: processing, acceptance, bookkeeping.

    Raises:
        ValueError: a time is negative or not finite, or the round takes none at all.
    """

    draft: float
    verify: float
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"RoundTime.{field.name} is {value}; expected a finite time of at least 0")
        if self.total == 0:
            raise ValueError("RoundTime has nothing but zeros; expected a round that takes time")

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.overhead

    def per_token(self, tokens: float) -> float:
        """Time of a token when a round emits `tokens` on average, at least 1."""
        if not (np.isfinite(tokens) and tokens >= 1):
            raise ValueError(f"tokens is {tokens}; expected at least 1, the target's own token")
        return self.total / tokens

    def speedup(self, tokens: float, plain: float) -> float:
        """How many times as fast as plain decoding, which takes `plain` a token; below 1: slower."""
        return _positive("plain", plain) / self.per_token(tokens)

    def breakeven_tokens(self, plain: float) -> float:
        """Tokens a round must emit to be as fast as plain decoding: T / plain."""
        return self.total / _positive("plain", plain)


def survival(accepted_at: ArrayLike, rounds: float) -> np.ndarray:
    """P(first i draft tokens accepted), i = 1..gamma, as counted by `specjax.Stats`.

    A slot that was not live counts as not accepted, so this is the probability over all rounds.

    Args:
        accepted_at: [gamma], rounds in which the token at each position was accepted.
        rounds: all rounds, at least 1.

    Raises:
        ValueError: the counts are none of a decoder: they grow along the draft, or exceed the rounds.
    """
    counts = _vector("accepted_at", accepted_at)
    if not rounds > 0:
        raise ValueError(f"rounds is {rounds}; expected at least 1")
    if np.any(np.diff(counts, prepend=rounds) > 0) or np.any(counts < 0):
        raise ValueError(f"accepted_at is {counts} of {rounds} rounds; expected counts that do not grow")
    return counts / rounds


def acceptance(drafted_at: ArrayLike, accepted_at: ArrayLike, rounds: float) -> np.ndarray:
    """P(token i accepted, given that it was live and reached), i = 1..gamma; NaN where that never happened.

    A token is reached when all before it were accepted. Where a slot was live in fewer rounds than reached
    it, the smaller number is what it was tried in.

    Args:
        drafted_at, accepted_at: [gamma], rounds in which each position was live, and accepted.
        rounds: all rounds, at least 1.
    """
    survived = survival(accepted_at, rounds)
    live = _vector("drafted_at", drafted_at) / rounds
    tried = np.minimum(live, np.append(1.0, survived[:-1]))
    return np.divide(survived, tried, out=np.full_like(survived, np.nan), where=tried > 0)


def expected_tokens(survived: ArrayLike) -> float:
    """E[N] = 1 + sum_i P(first i draft tokens accepted): tokens that a round emits.

    Args:
        survived: [gamma], from `survival`; the first g of them give a draft of g tokens.
    """
    values = _vector("survived", survived)
    if np.any((values < 0) | (values > 1)) or np.any(np.diff(values) > 1e-12):
        raise ValueError(f"survived is {values}; expected probabilities that do not grow")
    return 1.0 + float(values.sum())


def expected_tokens_at(rate: float, gamma: int) -> float:
    """E[N] = (1 - a^(gamma + 1)) / (1 - a), each token that is reached being accepted with probability a.

    Gamma + 1 for a = 1. Equals `expected_tokens` of a, a^2, ..., a^gamma.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; expected a probability")
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}; expected at least 0")
    return float(np.sum(rate ** np.arange(gamma + 1)))


def breakeven_rate(tokens: float, gamma: int) -> float | None:
    """The constant acceptance a at which a round emits `tokens` tokens.

    Returns:
        0 where one token is enough; None where gamma + 1 are not.
    """
    if tokens <= 1:
        return 0.0
    if tokens > gamma + 1:
        return None
    solution = optimize.root_scalar(lambda rate: expected_tokens_at(rate, gamma) - tokens, bracket=(0.0, 1.0))
    return float(solution.root)


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    vector = np.asarray(values, np.float64)
    if vector.ndim != 1 or not np.all(np.isfinite(vector)):
        raise ValueError(f"{name} is {values!r}; expected finite numbers in one dimension")
    return vector


def _positive(name: str, value: float) -> float:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; expected a finite time above 0")
    return value
