"""Accepted tokens against what the papers' formulas promise."""

from __future__ import annotations

import dataclasses

import numpy as np

from specjax.certify.contexts import Context
from specjax.verify import Rule

_ROUNDING = 1e-6  # by what float32 may move the chance to accept a token


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Accepted tokens of rounds against what each round had to expect.

    Attributes:
        total, predicted: sums over `rounds`. variance: of the total, by the formula.
        longest: tokens that a round can accept.
    """

    total: float = 0.0
    predicted: float = 0.0
    variance: float = 0.0
    rounds: int = 0
    longest: int = 0

    def plus(self, accepted: np.ndarray, tails: np.ndarray) -> Acceptance:
        """With more rounds: tokens accepted int[N], and `acceptance_tails` float64[N, live]."""
        mean = tails.sum(axis=1)
        square = tails @ (2 * np.arange(tails.shape[1]) + 1)  # E[A^2] = sum over k of (2k - 1) P(A >= k)
        return Acceptance(
            self.total + float(accepted.sum()),
            self.predicted + float(mean.sum()),
            self.variance + float(np.maximum(square - mean**2, 0).sum()),
            self.rounds + len(accepted),
            max(self.longest, tails.shape[1]),
        )

    @property
    def measured(self) -> float:
        return self.total / max(self.rounds, 1)

    @property
    def expected(self) -> float:
        return self.predicted / max(self.rounds, 1)

    @property
    def p_value(self) -> float:
        """A bound on the probability of a deviation so large (Bernstein's inequality).

        It also holds where hardly any round can reject, so that counts are far from normal.
        """
        deviation = max(abs(self.total - self.predicted) - _ROUNDING * self.rounds * self.longest, 0.0)
        if not deviation:
            return 1.0
        exponent = deviation**2 / (2 * (self.variance + self.longest * deviation / 3))
        return float(min(1.0, 2 * np.exp(-exponent)))


def acceptance_tails(rule: Rule, context: Context, tokens: np.ndarray) -> np.ndarray:
    """P(at least k tokens are accepted), float64[N, live] for k = 1, ..., of drafted blocks int[N, gamma].

    Written a second time, in float64 and with probabilities instead of logarithms. Leviathan et al., arXiv
    2211.17192, for "token"; Sun et al., arXiv 2403.10444, for "block"; for "coupled" the probability that
    two draws with the same Gumbel noise agree, of which nothing is known of the block.
    """
    live, p = context.live, context.p
    slots = np.arange(live)
    if rule.name == "coupled":
        return np.broadcast_to(np.cumprod(_agreement(context)), (len(tokens), live))
    p_of = p[slots, tokens[:, :live]]
    q_of = np.ones_like(p_of) if context.q is None else context.q[slots, tokens[:, :live]]
    ratio = p_of / np.maximum(q_of, np.finfo(float).tiny)
    if rule.name == "token" or context.q is None:
        return np.cumprod(np.minimum(ratio, 1), axis=1)
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
    return 1 - np.cumprod(1 - h[:, ::-1], axis=1)[:, ::-1]


def _agreement(context: Context) -> np.ndarray:
    """float64[live]: sum over v of 1 / sum over w of max(p_w / p_v, q_w / q_v), or p of a drafted point."""
    p, live = context.p[: context.live], context.live
    if context.q is None:
        return p[np.arange(live), context.tokens[:live]]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [
            np.maximum(own[None, :] / own[:, None], other[None, :] / other[:, None])
            for own, other in zip(p, context.q[:live], strict=True)
        ]
    return np.array([np.nansum(1 / ratio.sum(axis=1)) for ratio in ratios])
