"""What a decoder would be on a device: memory, what the compiler made of it, bytes and times."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.hlo.traffic import Traffic
from specjax.plan import roofline
from specjax.plan.devices import Device, describe

PASSES = ("plain", "verify", "draft", "round")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device, at the peak of a generation.

    Attributes:
        target_weights, draft_weights: parameters that both share count as the target's.
        target_cache, draft_cache, other_state: what is carried from round to round.
        padding: of all these, what the device's tiled layouts add.
        temporaries: of the program that needs more of them, prefill or rounds, and its code; None if the
            compiler refused it.
        capacity: of the device; None if it is not known.
    """

    target_weights: int
    draft_weights: int
    target_cache: int
    draft_cache: int
    other_state: int
    padding: int | None
    temporaries: int | None
    capacity: float | None

    @property
    def total(self) -> int:
        held = self.target_weights + self.draft_weights + self.target_cache + self.draft_cache
        return held + self.other_state + (self.padding or 0) + (self.temporaries or 0)

    @property
    def fits(self) -> bool:
        return self.temporaries is not None and (self.capacity is None or self.total <= self.capacity)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler made of one program.

    Attributes:
        name: `"start"`, the prefill, or `"run"`, the loop of rounds.
        temporary_bytes: with the program's code.
        donated_bytes, alias_bytes: of the state given, and of the buffers that become outputs (padded).
        unaliased: arrays of the state that are copied although they were given away.
        copies: instructions that copy a whole cache, each round; of a prefill, at all.
        copies_once: likewise, before or after the loop.
        host_transfers: instructions that talk to the host.
        row_write_loops: loops that write rows of a cache, in the program's text.
    """

    name: str
    compile_seconds: float
    argument_bytes: int
    temporary_bytes: int
    donated_bytes: int
    alias_bytes: int
    unaliased: int
    copies: tuple[str, ...]
    copies_once: tuple[str, ...]
    host_transfers: tuple[str, ...]
    row_write_loops: int

    @property
    def faults(self) -> list[str]:
        """What a decoding program must not do, in words."""
        found = [f"{self.name}: {what}" for what in (*self.copies, *self.copies_once)]
        found += [f"{self.name} talks to the host: {what}" for what in self.host_transfers]
        if self.unaliased:
            found.append(f"{self.name}: {self.unaliased} arrays of the donated state are copied")
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What one pass costs on one device, with every row as long as the capacity allows.

    Attributes:
        name: `"plain"`: a token by the target alone; `"verify"`: gamma + 1 tokens by the target; `"draft"`: a
            token by the draft alone; `"round"`: all of a speculative round.
        ideal_bytes: the weights and the valid cache of every pass in it, each once.
        seconds: by the roofline model; None for a device without published figures.
    """

    name: str
    traffic: Traffic
    ideal_bytes: float
    seconds: float | None
    compile_seconds: float

    @property
    def excess(self) -> float:
        """Bytes moved, in units of the ideal."""
        return self.traffic.total_bytes / self.ideal_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a decoder would be on a device.

    Attributes:
        mesh: devices along each axis; empty: one device.
        refused: why the compiler refused a program; None if it did not.
        unsplit: whether the mesh has devices along `model` although no weight divides by their number.
    """

    device: str
    mesh: dict[str, int]
    batch: int
    prompt_width: int
    capacity: int
    gamma: int
    memory: Memory
    programs: tuple[Compiled, ...] = ()
    steps: tuple[Step, ...] = ()
    refused: str | None = None
    unsplit: bool = False

    @property
    def published(self) -> Device:
        return describe(self.device)

    @property
    def faults(self) -> list[str]:
        found = [fault for program in self.programs for fault in program.faults]
        if self.refused:
            return [f"the compiler refuses: {self.refused}", *found]
        if not self.memory.fits:
            needed, capacity = self.memory.total, self.memory.capacity or 0
            found.insert(0, f"does not fit: needs {needed / 1e9:.2f} GB of {capacity / 1e9:.2f}")
        return found

    @property
    def speedups(self) -> dict[float, tuple[float, float]]:
        """For each acceptance probability, tokens a round and speed against plain decoding; both modelled."""
        seconds = {step.name: step.seconds for step in self.steps}
        plain, whole = seconds.get("plain"), seconds.get("round")
        if plain is None or whole is None:
            return {}
        tokens = {a: roofline.tokens_per_round(a, self.gamma) for a in roofline.ACCEPTANCES}
        return {a: (count, count * plain / whole) for a, count in tokens.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "total_bytes": self.memory.total,
            "fits": self.memory.fits,
            "faults": self.faults,
            "published": dataclasses.asdict(self.published),
            "speedups_by_model": [
                {"acceptance": a, "tokens_per_round": tokens, "speedup": speedup}
                for a, (tokens, speedup) in self.speedups.items()
            ],
        }
