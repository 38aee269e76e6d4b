"""Speculative against plain decoding: the same tokens, and how much faster."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

import numpy as np

from specjax.text.generation import Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` found.

    Attributes:
        identical: whether speculative decoding gave the tokens of plain decoding at equal compiled shapes.
            None where tokens are sampled: then only the distribution is the same.
        first_difference: index of the first generated token that differs, None if none does.
        speculative, plain_equal_width, plain: decode tokens per second, median of the repeats.
        ratio: speculative to the faster of both plain ways, median of the repeats.
    """

    identical: bool | None
    first_difference: int | None
    speculative: float
    plain_equal_width: float
    plain: float
    ratio: float


def compare(runners: Sequence[Runner], ids: Sequence[int], repeats: int) -> Comparison:
    """Decodes a prompt speculatively and plainly, in turns, so that a disturbance hits all alike.

    Two plain ways, because no single one answers both questions. One that scores as many tokens a round as
    the speculative way rounds alike, so greedy tokens must be equal; one that scores a single token is
    normally the fastest, and a speed-up over anything slower would be none.

    Args:
        runners: speculative, plain at equal width, plain; warmed up.
        repeats: how often each is measured, at least 1.
    """
    speeds: list[list[float]] = []
    differences: list[int | None] = []
    for _ in range(repeats):
        measured = [runner.measure(ids) for runner in runners]
        speeds.append([len(tokens) / seconds for tokens, seconds in measured])
        differences.append(first_difference(measured[0][0], measured[1][0]))
    medians = [statistics.median(runs) for runs in zip(*speeds, strict=True)]
    greedy = bool(np.all(np.asarray(runners[0].sampling.temperature) == 0))
    difference = min((d for d in differences if d is not None), default=None) if greedy else None
    return Comparison(
        identical=difference is None if greedy else None,
        first_difference=difference,
        speculative=medians[0],
        plain_equal_width=medians[1],
        plain=medians[2],
        ratio=statistics.median(own / max(plain) for own, *plain in speeds),
    )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two sequences differ, the end of the shorter one included; None if equal."""
    pairs = enumerate(itertools.zip_longest(left, right))
    return next((index for index, (a, b) in pairs if a != b), None)
