"""What a certification found."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_MARKS = {True: "ok", False: "FAILED", None: "not tested"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One promise, and whether it was kept.

    Attributes:
        stage: the group of checks that it belongs to.
        name: what was promised.
        draft: of which draft; None where none took part.
        passed: whether it was kept; None if nothing happened that could have broken it.
        found: what was seen, in words.
        values: the figures behind it.
    """

    stage: str
    name: str
    draft: str | None
    passed: bool | None
    found: str
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.passed is not None:  # NumPy's cannot be written as JSON
            object.__setattr__(self, "passed", bool(self.passed))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """Every check that was made.

    Attributes:
        settings: what was certified.
        skipped: stages that were not reached, because an earlier one failed.
    """

    settings: dict[str, Any]
    checks: tuple[Check, ...]
    skipped: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.skipped and not self.failures and any(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def untested(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is None)

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **dataclasses.asdict(self)}

    def write_json(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1, allow_nan=True)
            file.write("\n")

    def table(self) -> Table:
        """A line for each check. Needs the package `rich`."""
        import rich.box
        from rich.table import Table

        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for name in ("stage", "promise", "draft", "", "found"):
            table.add_column(name, overflow="fold")
        for check in self.checks:
            table.add_row(check.stage, check.name, check.draft or "", _MARKS[check.passed], check.found)
        for stage in self.skipped:
            table.add_row(stage, "", "", "not run", "an earlier stage failed")
        return table
