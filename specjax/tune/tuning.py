"""What tuning found: costs, predictions, measurements, and what to use."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specjax.bench.timing import Interval
from specjax.tune.cost import RoundTime, breakeven_rate
from specjax.tune.setting import Setting

if TYPE_CHECKING:
    from rich.table import Table

SURE = 0.9  # what measures a speed-up holds with at least this probability: from 5 turns on
CLOSE = 0.15  # a prediction is close to a measurement that differs by this fraction of it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Components:
    """Median seconds of the parts of a round, for one batch size.

    Attributes:
        plain: a whole round of plain decoding.
        verify: the target's step, by the tokens that it scores.
        overhead: the rest of a round, by gamma.
        draft: a proposal, by draft and gamma.
    """

    batch: int
    plain: float
    verify: dict[int, float]
    overhead: dict[int, float]
    draft: dict[str, dict[int, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One setting, predicted and measured.

    Attributes:
        time: seconds of its rounds on average, from the components.
        tokens: that a batch gains a round, for each row: rounds of plain decoding over rounds of this one, in
            which a batch waits for its slowest row. Of the prediction.
        acceptance: of each draft position given the ones before it; None where it was never reached.
        plain: seconds of a plain round, from the components.
        measured: the speed-up that was measured; None where it was not.
        measured_tokens, measured_round, measured_plain: of the measured runs, as `tokens`, seconds of a round
            and `plain`: what a wrong prediction was wrong about.
    """

    setting: Setting
    time: RoundTime
    tokens: float
    acceptance: tuple[float | None, ...]
    plain: float
    measured: Interval | None = None
    measured_tokens: float | None = None
    measured_round: float | None = None
    measured_plain: float | None = None

    @property
    def predicted(self) -> float:
        """The speed-up that the cost model predicts."""
        return self.time.speedup(self.tokens, self.plain)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.measured is None else self.predicted / self.measured.median - 1

    @property
    def close(self) -> bool | None:
        return None if self.error is None else abs(self.error) <= CLOSE

    @property
    def breakeven(self) -> float | None:
        """Constant acceptance at which the setting is as fast as plain decoding; None: at none."""
        return breakeven_rate(self.time.breakeven_tokens(self.plain), self.setting.gamma)

    @property
    def pays(self) -> bool | None:
        """Whether it is faster than plain decoding; None where no measurement makes that sure.

        An interval that holds with a probability below 0.9, of fewer than 5 turns, makes nothing sure.
        """
        if self.measured is None or self.measured.confidence < SURE:
            return None
        if self.measured.low > 1:
            return True
        return False if self.measured.high <= 1 else None

    @property
    def speedup(self) -> float:
        """Measured if it was, else predicted."""
        return self.predicted if self.measured is None else self.measured.median

    def to_json(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("predicted", "error", "breakeven", "pays")}
        return dataclasses.asdict(self) | derived


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """Everything that was found.

    Attributes:
        environment: where it ran. subject: what was decoded.
        components: of each batch size.
        busy_elsewhere: the largest share of all cores that other processes had during a measured run.
        interrupted: whether Ctrl-C ended it early.
        error: what went wrong, if something ended it early.
    """

    environment: dict[str, Any]
    subject: dict[str, Any]
    components: tuple[Components, ...]
    outcomes: tuple[Outcome, ...]
    busy_elsewhere: float | None = None
    interrupted: bool = False
    error: str | None = None

    @property
    def measured(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.measured is not None)

    @property
    def close(self) -> int:
        """How many predictions are within 15% of what was measured."""
        return sum(bool(outcome.close) for outcome in self.outcomes)

    def best(self, batch: int) -> Outcome | None:
        """The fastest setting of a batch size that surely pays; None: do not speculate, or not sure."""
        paying = [o for o in self.outcomes if o.setting.batch == batch and o.pays]
        return max(paying, key=lambda outcome: outcome.speedup, default=None)

    def fastest(self, batch: int) -> Outcome:
        """The setting of a batch size that is fastest as far as is known, whether it pays or not."""
        own = [outcome for outcome in self.outcomes if outcome.setting.batch == batch]
        return max(own, key=lambda outcome: outcome.speedup)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(outcome.setting.batch for outcome in self.outcomes))

    def advice(self, batch: int) -> str:
        """What to use at a batch size, in words."""
        if (best := self.best(batch)) is not None:
            return f"batch {batch}: use {best.setting}, {_speedup(best)}"
        count = sum(outcome.setting.batch == batch for outcome in self.outcomes)
        most = self.fastest(batch)
        found = f"the best of {count} settings, {most.setting}, is {_speedup(most)}"
        if most.speedup <= 1:
            return f"batch {batch}: do not speculate; {found}"
        if most.measured is None:
            return f"batch {batch}: not measured; {found}"
        if most.measured.confidence < SURE:
            return f"batch {batch}: not sure, which takes 5 turns or more; {found}"
        return f"batch {batch}: do not speculate, as none surely pays; {found}"

    def notes(self) -> list[str]:
        """What the tables do not say."""
        notes = [self.advice(batch) for batch in self.batches]
        if self.measured:
            notes.append(
                f"predicted within {CLOSE:.0%} of measured: {self.close} of {len(self.measured)} settings"
            )
        notes.append("decode time only, without the prompts; end-of-text ignored, so every way emits as much")
        if self.busy_elsewhere is not None and self.busy_elsewhere > 0.1:
            notes.append(f"other processes used up to {self.busy_elsewhere:.0%} of the cores meanwhile")
        if self.interrupted:
            notes.append("interrupted: what was measured until then")
        if self.error is not None:
            notes.append(f"ended by an error: what was measured until then; {self.error}")
        return notes

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "close": self.close,
            "recommended": {
                batch: best and dataclasses.asdict(best.setting)
                for batch in self.batches
                for best in (self.best(batch),)
            },
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)
            file.write("\n")

    def tables(self) -> Sequence[Table]:
        """What a round's parts cost, and a line for each setting. Needs the package `rich`."""
        return [self._component_table(), self._outcome_table()]

    def _component_table(self) -> Table:
        table = _table("batch", "plain", "verify, by tokens scored", "overhead, by gamma", "draft, by gamma")
        for parts in self.components:
            drafts = [f"{name}  {_by_number(times)}" for name, times in parts.draft.items()]
            table.add_row(
                str(parts.batch),
                f"{1e3 * parts.plain:.2f}",
                _by_number(parts.verify),
                _by_number(parts.overhead),
                "\n".join(drafts),
            )
        table.title = "milliseconds of a round's parts, measured apart"
        return table

    def _outcome_table(self) -> Table:
        table = _table(
            "setting",
            "tokens\n/round",
            "draft\nms",
            "verify\nms",
            "over-\nhead",
            "ms\n/token",
            "plain",
            "predicted",
            "measured",
            "error",
        )
        for outcome in self.outcomes:
            time = outcome.time
            parts = (time.draft, time.verify, time.overhead, time.per_token(outcome.tokens), outcome.plain)
            table.add_row(
                str(outcome.setting),
                f"{outcome.tokens:.2f}",
                *(f"{1e3 * part:.2f}" for part in parts),
                f"{outcome.predicted:.2f}",
                "" if outcome.measured is None else str(outcome.measured),
                "" if outcome.error is None else f"{outcome.error:+.0%}",
            )
        table.title = "speed-up over plain decoding"
        return table


def _speedup(outcome: Outcome) -> str:
    if outcome.measured is None:
        return f"{outcome.predicted:.2f} times as fast as plain decoding (predicted)"
    return f"{outcome.measured} times as fast as plain decoding"


def _by_number(seconds: dict[int, float]) -> str:
    return "  ".join(f"{number}: {1e3 * value:.2f}" for number, value in sorted(seconds.items()))


def _table(*columns: str) -> Table:
    import rich.box
    from rich.table import Table

    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
