"""What a run of `specjax generate` reports, for people and for machines."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import rich.box
from rich.table import Table

from specjax.text.comparison import Comparison
from specjax.text.generation import Generation
from specjax.text.prompts import BadLine, Prompt

# Narrow: the table should fit a terminal of 80 characters.
_COLUMNS = ("tokens", "rounds", "tokens\n/round", "first\ntoken s", "pre-\nfill s", "decode\ns", "tokens\n/s")
_COMPARISON_COLUMNS = ("ratio", "iden-\ntical")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A prompt with what came of it."""

    prompt: Prompt
    generation: Generation
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        generation = dataclasses.asdict(self.generation)
        return {
            "id": self.prompt.name,
            "line": self.prompt.line,
            **generation,
            "comparison": None if self.comparison is None else dataclasses.asdict(self.comparison),
        }


@dataclasses.dataclass(kw_only=True)
class Report:
    """A whole run.

    Attributes:
        draft: what drafted.
        draft_failure: why the draft that was asked for did not, None if it did.
        compile_seconds: spent before the first prompt; part of no other time.
    """

    model: str
    dtype: str
    draft: str
    gamma: int
    rule: str = "auto"
    policy: str = "fixed"
    verify_widths: tuple[int, ...] = ()
    draft_failure: str | None = None
    compile_seconds: float = 0.0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    bad_lines: list[BadLine] = dataclasses.field(default_factory=list)

    @property
    def generations(self) -> list[Generation]:
        return [entry.generation for entry in self.entries]

    @property
    def comparisons(self) -> list[Comparison]:
        return [entry.comparison for entry in self.entries if entry.comparison is not None]

    @property
    def ok(self) -> bool:
        """Whether every prompt was decoded without a fault, and as plain decoding would."""
        wrong = any(comparison.identical is False for comparison in self.comparisons)
        return not (self.bad_lines or wrong or any(generation.failed for generation in self.generations))

    def acceptance(self) -> list[float | None]:
        """How often a live draft token was accepted, at each position; None where none was live."""
        drafted = _sum_at(generation.drafted_at for generation in self.generations)
        accepted = _sum_at(generation.accepted_at for generation in self.generations)
        return [a / d if d else None for d, a in zip(drafted, accepted, strict=True)]

    def ratio(self) -> float | None:
        """The geometric mean of the prompts' ratios."""
        ratios = [comparison.ratio for comparison in self.comparisons]
        return statistics.geometric_mean(ratios) if ratios else None

    def to_json(self) -> dict[str, Any]:
        total = _total(self.generations)
        return {
            "model": self.model,
            "dtype": self.dtype,
            "draft": self.draft,
            "draft_failure": self.draft_failure,
            "gamma": self.gamma,
            "verify_widths": self.verify_widths,
            "rule": self.rule,
            "policy": self.policy,
            "prompts": len(self.entries),
            "bad_lines": [dataclasses.asdict(line) for line in self.bad_lines],
            **dataclasses.asdict(total),
            "mean_tokens_per_round": total.tokens_per_round,
            "decode_tokens_per_second": total.tokens_per_second,
            "acceptance": self.acceptance(),
            "compile_seconds": self.compile_seconds,
            "ratio": self.ratio(),
            "identical": _all_identical(self.comparisons),
        }

    def table(self) -> Table:
        """One line for each prompt and, of several, one for all."""
        table = Table(box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False)
        table.add_column("")
        for name in (*_COLUMNS, *(_COMPARISON_COLUMNS if self.comparisons else ()), "finish"):
            table.add_column(name, justify="right")
        for entry in self.entries:
            generation = entry.generation
            total = _total([generation])
            cells = [entry.prompt.name, *total.cells(generation.first_token_seconds)]
            table.add_row(*cells, *self._comparison_cells(entry.comparison), generation.finish_reason)
        if len(self.entries) > 1:
            table.add_section()
            cells = ["all", *_total(self.generations).cells(None)]
            if (ratio := self.ratio()) is not None:
                cells += [f"{ratio:.2f}", _yes_no(_all_identical(self.comparisons))]
            table.add_row(*cells)
        return table

    def notes(self) -> list[str]:
        """Lines that belong under the table."""
        settings = [f"draft {self.draft}", f"gamma {self.gamma}", f"rule {self.rule}"]
        if self.policy != "fixed":
            settings.append(f"policy {self.policy}")
        if self.verify_widths:
            settings.append(f"verify widths also {', '.join(map(str, self.verify_widths))}")
        lines = [f"model {self.model}, {self.dtype}; {', '.join(settings)}"]
        if self.draft_failure is not None:
            lines.append(f"decoded plainly, because the draft failed: {self.draft_failure}")
        if any(value is not None for value in self.acceptance()):
            shown = " ".join("-" if value is None else f"{value:.2f}" for value in self.acceptance())
            lines.append(f"acceptance at each draft position: {shown}")
        if failures := sum(generation.draft_failures for generation in self.generations):
            lines.append(f"rounds in which the draft's logits were not finite: {failures}")
        lines.append(f"compile time, in none of the above: {self.compile_seconds:.1f} s")
        if self.comparisons:
            lines.append(
                "ratio: decode tokens/s, speculative to the fastest plain decoding, median of the repeats; "
                "all: geometric mean"
            )
        if any(comparison.several_widths_difference is not None for comparison in self.comparisons):
            lines.append("* with rounds of one width; see the line below the text")
        return lines

    def _comparison_cells(self, comparison: Comparison | None) -> list[str]:
        if comparison is None:  # of a run that compares, the prompt that was interrupted
            return ["-", "-"] if self.comparisons else []
        star = "" if comparison.several_widths_difference is None else "*"
        return [f"{comparison.ratio:.2f}", _yes_no(comparison.identical) + star]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Total:
    """Sums over generations."""

    tokens: int
    emitted: int
    rounds: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_round(self) -> float:
        return self.emitted / max(self.rounds, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.emitted / self.decode_seconds if self.decode_seconds else 0.0

    def cells(self, first_token_seconds: float | None) -> list[str]:
        first = "" if first_token_seconds is None else f"{first_token_seconds:.2f}"
        return [
            f"{self.tokens}",
            f"{self.rounds}",
            f"{self.tokens_per_round:.2f}",
            first,
            f"{self.prefill_seconds:.2f}",
            f"{self.decode_seconds:.2f}",
            f"{self.tokens_per_second:.1f}",
        ]


def describe(comparison: Comparison) -> str:
    """A comparison in one line."""
    if comparison.identical is None:
        identical = "identical: not asked, sampled tokens are equal in distribution only"
    elif comparison.identical and comparison.several_widths_difference is None:
        identical = "identical: yes"
    elif comparison.identical:
        identical = (
            f"identical: yes at one width; with several widths not from generated token "
            f"{comparison.several_widths_difference} on, as rounding can make it"
        )
    else:
        identical = (
            f"identical: no, first at generated token {comparison.first_difference} "
            "(whether it is a near-tie there is unknown)"
        )
    return (
        f"{identical} | ratio: {comparison.ratio:.2f} (tokens/s: speculative {comparison.speculative:.1f}, "
        f"plain {comparison.plain:.1f}, plain at equal width {comparison.plain_equal_width:.1f})"
    )


def _total(generations: Sequence[Generation]) -> _Total:
    return _Total(
        tokens=sum(len(generation.token_ids) for generation in generations),
        emitted=sum(generation.emitted for generation in generations),
        rounds=sum(generation.rounds for generation in generations),
        prefill_seconds=sum(generation.prefill_seconds for generation in generations),
        decode_seconds=sum(generation.decode_seconds for generation in generations),
    )


def _sum_at(rows: Iterable[Sequence[int]]) -> list[int]:
    """Sums at each position; an interrupted generation may have no positions."""
    return [sum(position) for position in zip(*(row for row in rows if row), strict=True)]


def _all_identical(comparisons: Sequence[Comparison]) -> bool | None:
    known = [comparison.identical for comparison in comparisons if comparison.identical is not None]
    return all(known) if known else None


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[value]
