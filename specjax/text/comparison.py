"""Speculative against plain decoding: the same tokens, and how much faster."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from specjax.text.generation import Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` found.

    Attributes:
        identical: whether speculative decoding gave the tokens of plain decoding at equal compiled shapes.
            None where only the distribution is the same.
        first_difference: index of the first generated token that differs, None if none does.
        several_widths_difference: the same index with rounds of several widths, which are rounded otherwise,
            so that a near-tie may tip; `identical` is then about rounds of one width.
        speculative, plain: decode tokens per second, median of the repeats.
        plain_equal_width: the same, measured once.
        ratio: speculative to the faster of both plain ways, median of the repeats.
    """

    identical: bool | None
    first_difference: int | None
    several_widths_difference: int | None
    speculative: float
    plain_equal_width: float
    plain: float
    ratio: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ways:
    """The ways of decoding that a comparison needs, warmed up except for `speculative_one_width`.

    Attributes:
        same_tokens: whether all of them should give the same tokens: greedy ones, or those of a rule whose
            text does not depend on the draft.
        speculative: as it is used.
        plain_equal_width: plain decoding that scores gamma + 1 tokens a round.
        plain: as fast as it can.
        speculative_one_width: scores gamma + 1 tokens in every round; None if `speculative` does.
    """

    same_tokens: bool
    speculative: Runner
    plain_equal_width: Runner
    plain: Runner
    speculative_one_width: Runner | None = None


def compare(ways: Ways, ids: Sequence[int], repeats: int) -> Comparison:
    """Decodes a prompt speculatively and plainly, in turns, so that a disturbance hits all alike.

    Two plain ways, because no single one answers both questions. One that scores as many tokens a round as
    the speculative way rounds alike, so greedy tokens must be equal: once is enough to see. One that scores a
    single token is normally the fastest, and a speed-up over anything slower would be none. Where rounds of
    several widths give other tokens, rounds of one width tell rounding from a fault.

    Args:
        repeats: how often speculative and plain decoding are measured, at least 1.
    """
    equal_tokens, seconds = ways.plain_equal_width.measure(ids)
    equal_speed = len(equal_tokens) / seconds
    speeds: list[tuple[float, float]] = []
    differences: list[int | None] = []
    for _ in range(repeats):
        tokens, seconds = ways.speculative.measure(ids)
        plain_tokens, plain_seconds = ways.plain.measure(ids)
        speeds.append((len(tokens) / seconds, len(plain_tokens) / plain_seconds))
        differences.append(first_difference(tokens, equal_tokens))
    difference = min((d for d in differences if d is not None), default=None) if ways.same_tokens else None
    several_widths_difference = None
    if difference is not None and ways.speculative_one_width is not None:
        tokens, _ = ways.speculative_one_width.measure(ids)
        several_widths_difference, difference = difference, first_difference(tokens, equal_tokens)
    return Comparison(
        identical=difference is None if ways.same_tokens else None,
        first_difference=difference,
        several_widths_difference=several_widths_difference,
        speculative=statistics.median(own for own, _ in speeds),
        plain_equal_width=equal_speed,
        plain=statistics.median(other for _, other in speeds),
        ratio=statistics.median(own / max(other, equal_speed) for own, other in speeds),
    )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index at which two sequences differ, the end of the shorter one included; None if equal."""
    pairs = enumerate(itertools.zip_longest(left, right))
    return next((index for index, (a, b) in pairs if a != b), None)
