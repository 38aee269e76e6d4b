"""What a benchmark measured, and its file."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

from specjax.bench.arms import Facts, Label


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one arm on one batch.

    Attributes:
        arm, batch: which arm of which batch size.
        task, index: which batch of prompts. turn: from 0; the arms of one turn ran one after another.
        tokens: generated, of all rows together.
        decode_tokens: those of them that `decode_seconds` is about.
        total_seconds, first_token_seconds, decode_seconds, rounds, row_rounds, drafted_at, accepted_at: of
            `Outcome`.
        compared: rows whose text was compared with that of the arm's reference.
        differing: those of them that differ.
        first_difference: the first generated token that does in any of them, from 0.
        busy_elsewhere: of `Sample`.
    """

    arm: str
    batch: int
    task: str
    index: int
    turn: int
    tokens: int
    decode_tokens: int
    total_seconds: float
    first_token_seconds: float | None
    decode_seconds: float | None
    rounds: int | None
    row_rounds: int
    drafted_at: list[int]
    accepted_at: list[int]
    compared: int
    differing: int
    first_difference: int | None
    busy_elsewhere: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredArm:
    """An arm with what is true of it whatever it decodes."""

    label: Label
    facts: Facts


@dataclasses.dataclass(kw_only=True)
class Benchmark:
    """Everything that a run found out.

    Attributes:
        settings: what was measured, and how.
        environment: where, `specjax.bench.timing.environment`.
        prompts: for each task the names and lengths (in tokens) of its prompts.
        peers: versions of other libraries, in their own words.
        peak_memory: bytes, of the whole process, and "device" or "process" for what was asked.
        interrupted: whether Ctrl-C ended it early.
        error: what went wrong, if something ended it early.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]
    prompts: dict[str, list[tuple[str, int]]]
    peers: dict[str, str] = dataclasses.field(default_factory=dict)
    arms: list[MeasuredArm] = dataclasses.field(default_factory=list)
    records: list[Record] = dataclasses.field(default_factory=list)
    peak_memory: tuple[int, str] | None = None
    interrupted: bool = False
    error: str | None = None

    @property
    def batches(self) -> list[int]:
        """Batch sizes that were measured, in their order."""
        return list(dict.fromkeys(record.batch for record in self.records))

    @property
    def tasks(self) -> list[str]:
        """Tasks that were measured, in their order."""
        return list(dict.fromkeys(record.task for record in self.records))

    def arms_of(self, batch: int) -> list[MeasuredArm]:
        """The arms of a batch size that were measured."""
        seen = {record.arm for record in self.records if record.batch == batch}
        return [arm for arm in self.arms if arm.label.batch == batch and arm.label.name in seen]

    def write_json(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file, indent=1, default=str)
            file.write("\n")

    @classmethod
    def read_json(cls, path: str | os.PathLike[str]) -> Benchmark:
        """Reads what `write_json` wrote.

        Raises:
            ValueError: the file holds something else.
        """
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        try:
            arms = [
                MeasuredArm(
                    label=Label(**arm["label"] | {"verify_widths": tuple(arm["label"]["verify_widths"])}),
                    facts=Facts(**arm["facts"]),
                )
                for arm in value.pop("arms")
            ]
            records = [Record(**record) for record in value.pop("records")]
            return cls(**value, arms=arms, records=records)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no file of specjax bench: {error}") from error
