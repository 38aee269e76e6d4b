"""Statistics: whether counts fit a law, and what difference they could have shown."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import optimize, special, stats

# Chi-square's approximation wants this many expected counts in a bin.
_FEWEST = 10.0
_POWER = 0.99


@dataclasses.dataclass(frozen=True)
class ChiSquare:
    """Pearson's statistic, summed over independent tables of counts.

    Attributes:
        statistic: sum of (observed - expected)^2 / expected.
        freedom: degrees of freedom.
        draws, tables: counts in all tables that can show anything, and how many tables those are.
        impossible: counts where the law is 0.
    """

    statistic: float = 0.0
    freedom: int = 0
    draws: int = 0
    tables: int = 0
    impossible: int = 0

    def __add__(self, other: ChiSquare) -> ChiSquare:
        return ChiSquare(
            *(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the counts were drawn from the laws; 0 where the impossible happened."""
        if self.impossible:
            return 0.0
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0

    def detectable(self, level: float) -> float:
        """The total variation between bins that would have been found with probability 0.99 at this level.

        On average over the tables. A law at total variation e has noncentrality at least 4 n e^2, which is
        reached when the law and the deviation are spread alike. What moves probability between outcomes of
        one bin, or in a table with a single bin, is not seen.
        """
        if not self.freedom or not self.draws:
            return 1.0
        critical = stats.chi2.isf(level, self.freedom)

        def missing(noncentrality: float) -> float:
            return float(stats.ncx2.sf(critical, self.freedom, noncentrality)) - _POWER

        needed = optimize.root_scalar(missing, bracket=(1e-9, 10 * critical + 1000)).root
        return float(min(1.0, np.sqrt(needed / (4 * self.draws))))


def fit(counts: np.ndarray, law: np.ndarray) -> ChiSquare:
    """How counts int[K] fit a law float64[K]; rare outcomes are pooled, the rarest first."""
    counts, draws = np.asarray(counts, np.float64), float(np.sum(counts))
    expected = law * draws
    impossible = int(counts[law == 0].sum())
    observed, wanted = _pooled(counts[law > 0], expected[law > 0])
    statistic = float(np.sum((observed - wanted) ** 2 / wanted))
    if len(wanted) < 2:
        return ChiSquare(impossible=impossible)
    return ChiSquare(statistic, len(wanted) - 1, int(draws), 1, impossible)


def homogeneous(left: np.ndarray, right: np.ndarray) -> ChiSquare:
    """Whether counts int[K] of two samples are of one law, whatever it is."""
    both = np.stack([left, right]).astype(np.float64)
    total, sizes = both.sum(axis=0), both.sum(axis=1)
    seen = total > 0
    expected = sizes[:, None] * total[None, seen] / total.sum()
    observed = both[:, seen]
    # Pool by the smaller sample's expectation, so that every bin of either is large enough.
    smaller = expected[np.argmin(sizes)]
    groups = _groups(smaller)
    statistic, bins = 0.0, groups.max(initial=-1) + 1
    for own, wanted in zip(observed, expected, strict=True):
        own, wanted = (np.bincount(groups, weights=values, minlength=bins) for values in (own, wanted))
        statistic += float(np.sum((own - wanted) ** 2 / wanted))
    # Two samples of n show what one sample of n / 2 shows.
    effective = int(sizes.prod() / sizes.sum())
    return ChiSquare(statistic, bins - 1, effective, 1) if bins > 1 else ChiSquare()


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """Total variation between the frequencies of two tables of counts."""
    return float(np.abs(left / np.sum(left) - right / np.sum(right)).sum() / 2)


def noise_floor(left: np.ndarray, right: np.ndarray) -> float:
    """The `distance` to be expected between two samples of one law, given the counts of both together.

    The draws are exchangeable then: how many of an outcome are in the first sample is hypergeometric.
    """
    n, m = int(np.sum(left)), int(np.sum(right))
    totals, outcomes = np.unique(left + right, return_counts=True)
    expected = 0.0
    for total, count in zip(totals, outcomes, strict=True):
        own = np.arange(max(0, total - m), min(n, total) + 1)
        chance = stats.hypergeom.pmf(own, n + m, total, n)
        expected += count * float(chance @ np.abs(own / n - (total - own) / m))
    return expected / 2


def log_e_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Log of evidence against "the counts int[K] are drawn from the law float64[K]".

    The likelihood of a Dirichlet mixture around the law, over that of the law:

        log E = lgamma(A) - lgamma(A + n) + sum_v [lgamma(a_v + c_v) - lgamma(a_v) - c_v log p_v]

    with a = 4 K p, A = sum a. Under the law E is at least 1 / level with a probability of at most `level`, at
    every time of a growing sample at once (Ville's inequality), so one may look as often as one likes. +inf
    where the impossible happened.
    """
    counts = np.asarray(counts, np.float64)
    if np.any(counts[law == 0]):
        return np.inf
    seen = counts > 0
    c, p, n = counts[seen], law[seen], counts.sum()
    a = 4 * np.count_nonzero(law) * p
    total = 4 * np.count_nonzero(law) * law.sum()
    log_mixture = special.gammaln(total) - special.gammaln(total + n)
    log_mixture += np.sum(special.gammaln(a + c) - special.gammaln(a))
    return float(log_mixture - np.sum(c * np.log(p)))


def uniform_places(draws: np.ndarray, law: np.ndarray, order: np.ndarray, seed: int) -> np.ndarray:
    """Turns draws int[N] of a law float64[K] into numbers that are uniform on [0, 1], for any law.

    Outcomes are laid side by side in the given `order` int[K], each as wide as it is probable; a draw becomes
    a random point of its outcome. NaN where the impossible happened.
    """
    ends = np.empty(len(law))
    ends[order] = np.cumsum(law[order])
    width = law[draws]
    points = ends[draws] - width * np.random.default_rng(seed).random(len(draws))
    return np.where(width > 0, points, np.nan)


def _pooled(observed: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = _groups(expected)
    return np.bincount(groups, weights=observed), np.bincount(groups, weights=expected)


def _groups(expected: np.ndarray) -> np.ndarray:
    """Bins int[K] of which each expects enough: the common outcomes alone, rare ones together.

    They are walked from rare to common; a bin is closed as soon as it is large enough.
    """
    groups = np.zeros(len(expected), np.int64)
    number, mass = 0, 0.0
    for index in np.argsort(expected, kind="stable"):
        groups[index] = number
        mass += expected[index]
        if mass >= _FEWEST:
            number, mass = number + 1, 0.0
    if mass > 0.0:  # too little is left for a bin of its own; only where nothing reaches the threshold
        groups[groups == number] = max(number - 1, 0)
    return groups
