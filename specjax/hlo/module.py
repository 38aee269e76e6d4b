"""Compiled programs as data: the text of an optimized HLO module, read."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_NAME = r"[\w.\-]+"
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_COMPUTATION = re.compile(rf"^(ENTRY )?%?({_NAME}) (?:\(.*)?\{{$")
_INSTRUCTION = re.compile(rf"^\s+(ROOT )?%?({_NAME}) = (.*)$")
_REFERENCE = re.compile(rf"%({_NAME})")
_CALLED = re.compile(
    rf"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?({_NAME})"
    r"|\bbranch_computations=\{([^}]*)\}"
)
_PARENTHESIS = re.compile(r"[()]")
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_ALIAS = re.compile(r"\(\s*(\d+),\s*\{")


@dataclasses.dataclass(frozen=True)
class Array:
    """An array in a program.

    Attributes:
        dtype: HLO's name, such as `bf16`.
        dims: its shape; on several devices, the part that one of them holds.
        memory_space: 0 is the device's main memory. On TPU 1 is on-chip (VMEM), 5 is the host's.
    """

    dtype: str
    dims: tuple[int, ...]
    memory_space: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes, without the padding of a tiled layout."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            digits = re.search(r"\d+", self.dtype)
            bits = int(digits.group()) if digits else 8
        return -(-self.size * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        arrays: the result, tuples flattened.
        operands: names of instructions of the same computation.
        called: computations that it runs, in their order: a fusion's body; a loop's condition and body; the
            branches of a conditional.
        text: what follows the shape: opcode, operands and attributes.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    text: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The value of an attribute such as `dim_labels`; None if there is none."""
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^\s,]+)", self.text)
        return found and found.group(1)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


@dataclasses.dataclass(frozen=True)
class Computation:
    """A function of the module; `instructions` by name, in the order of the schedule."""

    name: str
    instructions: dict[str, Instruction]

    @functools.cached_property
    def root(self) -> Instruction:
        return next(item for item in self.instructions.values() if item.is_root)

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        found = (item for item in self.instructions.values() if item.opcode == "parameter")
        return {int(_arguments(item.text)): item for item in found}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who uses the result of each instruction."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for item in self.instructions.values():
            for operand in dict.fromkeys(item.operands):
                if operand in users:
                    users[operand].append(item)
        return users

    def operands(self, item: Instruction) -> list[Instruction]:
        return [self.instructions[name] for name in item.operands if name in self.instructions]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        entry: the name of the computation that runs.
        aliased_parameters: parameters whose buffers become outputs.
        devices: that run it together.
    """

    entry: str
    computations: dict[str, Computation]
    aliased_parameters: frozenset[int]
    devices: int = 1

    def __getitem__(self, name: str) -> Computation:
        return self.computations[name]

    def reachable(self, name: str, *, into_fusions: bool = False) -> Iterator[Computation]:
        """A computation and all that it runs, each once; the bodies of fusions only if they are asked for."""
        pending, seen = [name], set()
        while pending:
            current = pending.pop()
            if current in seen or current not in self.computations:
                continue
            seen.add(current)
            computation = self[current]
            yield computation
            for item in computation.instructions.values():
                if into_fusions or item.opcode in CONTROL_FLOW:
                    pending.extend(item.called)

    def loops(self, name: str) -> Iterator[tuple[Computation, Instruction]]:
        """Every `while` in a computation and in what it runs, with the computation that it stands in."""
        for computation in self.reachable(name):
            for item in computation.instructions.values():
                if item.opcode == "while":
                    yield computation, item


# Instructions whose called computations run as programs of their own.
CONTROL_FLOW = frozenset({"while", "conditional", "call", "async-start"})


def parse(compiled: Any) -> Module:
    """Reads the text of an optimized module, or a compiled program that has one (`jit(f).lower().compile()`).

    Raises:
        ValueError: this is not the text of a module.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    if not isinstance(text, str) or not text.startswith("HloModule"):
        raise ValueError(f"expected the text of an HLO module, found {str(text)[:40]!r}")
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    lines = iter(text.splitlines())
    header = next(lines)
    for line in lines:
        if not line or line == "}":
            continue
        if line[0] not in " \t" and (opened := _COMPUTATION.match(line)):
            name, current = opened.group(2), {}
            computations[name] = Computation(name, current)
            entry = name if opened.group(1) else entry
        elif found := _INSTRUCTION.match(line):
            item = _instruction(found.group(2), found.group(3), bool(found.group(1)))
            current[item.name] = item
    devices = math.prod(int(number) for number in _DEVICES.findall(header))
    return Module(entry, computations, _aliased(header), devices)


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    shape, text = _split_shape(rest)
    opcode = text[: text.index("(")]
    attributes = text[len(opcode) + len(_arguments(text)) + 2 :]
    called = []
    for _, single, several in _CALLED.findall(attributes):
        called.extend([single] if single else _REFERENCE.findall(several))
    if opcode == "while":  # the condition comes first, however they are printed
        found = {kind: target for kind, target, _ in _CALLED.findall(attributes)}
        called = [found["condition"], found["body"]]
    arrays = tuple(
        Array(dtype, tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim), _memory_space(layout))
        for dtype, dims, layout in _ARRAY.findall(shape)
    )
    operands = tuple(_REFERENCE.findall(_arguments(text)))
    return Instruction(name, opcode, arrays, operands, tuple(called), text, is_root)


def _split_shape(rest: str) -> tuple[str, str]:
    """The result's shape, a tuple in parentheses or one array, and what follows."""
    end = rest.index(" ") if rest[0] != "(" else _closing(rest, 0) + 1
    return rest[:end], rest[end:].lstrip()


def _arguments(text: str) -> str:
    """What stands in the parentheses after the opcode."""
    start = text.index("(")
    return text[start + 1 : _closing(text, start)]


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` closes."""
    depth = 0
    for found in _PARENTHESIS.finditer(text, start):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis does not close in {text[start : start + 80]!r}")


def _memory_space(layout: str) -> int:
    found = _MEMORY_SPACE.search(layout) if layout else None
    return int(found.group(1)) if found else 0


def _aliased(header: str) -> frozenset[int]:
    start = header.find("input_output_alias={")
    if start < 0:
        return frozenset()
    end = header.find("entry_computation_layout", start)
    return frozenset(int(number) for number in _ALIAS.findall(header[start:end]))
