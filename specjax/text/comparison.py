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
        speculative, plain: decode tokens per second, median of the repeats.
        plain_equal_width: the same, measured once.
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
    the speculative way rounds alike, so greedy tokens must be equal: once is enough to see. One that scores a
    single token is normally the fastest, and a speed-up over anything slower would be none.

    Args:
        runners: speculative, plain at equal width, plain; warmed up.
        repeats: how often the first and the last are measured, at least 1.
    """
    speculative, plain_equal_width, plain = runners
    equal_tokens, seconds = plain_equal_width.measure(ids)
    equal_speed = len(equal_tokens) / seconds
    speeds: list[tuple[float, float]] = []
    differences: list[int | None] = []
    for _ in range(repeats):
        tokens, seconds = speculative.measure(ids)
        plain_tokens, plain_seconds = plain.measure(ids)
        speeds.append((len(tokens) / seconds, len(plain_tokens) / plain_seconds))
        differences.append(first_difference(tokens, equal_tokens))
    greedy = bool(np.all(np.asarray(speculative.sampling.temperature) == 0))
    difference = min((d for d in differences if d is not None), default=None) if greedy else None
    return Comparison(
        identical=difference is None if greedy else None,
        first_difference=difference,
        speculative=statistics.median(own for own, _ in speeds),
        plain_equal_width=equal_speed,
        plain=statistics.median(other for _, other in speeds),
        ratio=statistics.median(own / max(other, equal_speed) for own, other in speeds),
    )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two sequences differ, the end of the shorter one included; None if equal."""
    pairs = enumerate(itertools.zip_longest(left, right))
    return next((index for index, (a, b) in pairs if a != b), None)
