"""What a compiled program moves and multiplies, counted on its instructions.

Each instruction of the schedule reads its operands and writes its result once, where those lie in the
device's main memory; what stays in on-chip memory costs nothing. Fusions that slice an operand read the
slice, updates in place touch the update. Loops count their body as often as it runs, and as it is in its
last round; conditionals count their costliest branch. Padding of tiled layouts is not counted. What a cache
of the device saves is counted by size alone: results that fit are not read from memory.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping

import numpy as np

from specjax.hlo.constants import Constants, Value
from specjax.hlo.loops import trips
from specjax.hlo.module import Array, Computation, Instruction, Module

_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
        *("replica-id", "opt-barrier", "optimization-barrier", "add-dependency", "domain"),
    }
)
_SLICES = frozenset({"dynamic-slice", "slice", "gather", "slice-start", "dynamic-slice-start"})
# Where an update in place has its destination and its update among the operands.
UPDATES = {"dynamic-update-slice": 1, "dynamic-update-slice-start": 1, "scatter": 2}
_SAME_ELEMENTS = frozenset({"bitcast", "reshape", "convert", "copy", "transpose"})
# What each of n chips of a ring sends, in units of its operand.
_COLLECTIVES: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}
# Groups as lists, `{{0,1},{2,3}}`; as an iota, `[groups,size]<=[...]`; as axes of a mesh,
# `mesh['a'=2,'b'=4] {'b'}`.
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(?:\d+,)*(\d+)\]<=")
_MESH_GROUPS = re.compile(r"replica_groups=[^\[{,\s]*mesh[^\[]*\[([^\]]*)\](?:\s*\{([^}]*)\})?")
_AXIS = re.compile(r"['\"]([^'\"]+)['\"](?:=(\d+))?")
_NUMBERS = re.compile(r"-?\d+")
_CACHE = -1  # a memory space that no compiler names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a program does, on one device.

    Attributes:
        read_bytes, written_bytes: of the device's main memory.
        flops: of matrix products alone.
        collective_bytes: that it sends to others in collectives, each as a ring of the chips that take part.
        unknown_loops: loops that run nobody knows how often; counted as if once.
    """

    read_bytes: float = 0
    written_bytes: float = 0
    flops: float = 0
    collective_bytes: float = 0
    unknown_loops: int = 0

    @property
    def total_bytes(self) -> float:
        return self.read_bytes + self.written_bytes

    def __add__(self, other: Traffic) -> Traffic:
        fields = [field.name for field in dataclasses.fields(Traffic)]
        return Traffic(**{name: getattr(self, name) + getattr(other, name) for name in fields})

    def times(self, count: int) -> Traffic:
        return Traffic(
            read_bytes=self.read_bytes * count,
            written_bytes=self.written_bytes * count,
            flops=self.flops * count,
            collective_bytes=self.collective_bytes * count,
            unknown_loops=self.unknown_loops if count else 0,
        )


def count(module: Module, cached_bytes: float = 0) -> Traffic:
    """The traffic of a whole program.

    Args:
        cached_bytes: results of at most this size are found in the device's cache by whoever uses them.
            What a computation is given and what it returns lies in memory all the same.
    """
    if cached_bytes:
        module = _with_cached_results(module, cached_bytes)
    return _of_computation(module, module[module.entry], {})


def _with_cached_results(module: Module, limit: float) -> Module:
    """The program with small results in another memory."""
    control = ("parameter", "constant", "while", "conditional", "call", "tuple")

    def cached(computation: Computation, item: Instruction) -> bool:
        if item.opcode in ("bitcast", "reshape", "get-tuple-element"):
            return all(cached(computation, operand) for operand in computation.operands(item))
        return item.opcode not in control and not item.is_root and item.name not in computation.root.operands

    def placed(computation: Computation, item: Instruction) -> Instruction:
        if not cached(computation, item):
            return item
        arrays = [
            dataclasses.replace(array, memory_space=_CACHE) if array.nbytes <= limit else array
            for array in item.arrays
        ]
        return dataclasses.replace(item, arrays=tuple(arrays))

    computations = {
        name: Computation(name, {key: placed(of, item) for key, item in of.instructions.items()})
        for name, of in module.computations.items()
    }
    return dataclasses.replace(module, computations=computations)


def _of_computation(module: Module, computation: Computation, known: Mapping[str, Value]) -> Traffic:
    """The traffic of a computation, in which some values are known."""
    constants = Constants(module, computation, known)

    def of(item: Instruction) -> Traffic:
        if item.opcode == "while":
            found = trips(module, computation, item, constants)
            condition, body = (module[name] for name in item.called)
            once = _of_computation(module, condition, {}) + _of_computation(module, body, found.known)
            return once + Traffic(unknown_loops=1) if found.count is None else once.times(found.count)
        if item.opcode == "conditional":
            branches = [_of_computation(module, module[name], {}) for name in item.called]
            return max(branches, key=lambda branch: (branch.total_bytes, branch.flops))
        if item.opcode == "call":
            body = module[item.called[0]]
            values = [constants[operand] for operand in computation.operands(item)]
            given = {parameter.name: values[index] for index, parameter in body.parameters.items()}
            return _of_computation(module, body, given)
        if item.opcode in _FREE or item.opcode.endswith(("-done", "-update")):
            return Traffic()
        read, written = _moved(module, computation, item)
        return Traffic(
            read_bytes=read,
            written_bytes=written,
            flops=_flops(module, computation, item),
            collective_bytes=_sent(module, computation, item),
        )

    return sum((of(item) for item in computation.instructions.values()), Traffic())


def _sent(module: Module, computation: Computation, item: Instruction) -> float:
    """Bytes that a chip sends in a collective."""
    share = _COLLECTIVES.get(item.opcode.removesuffix("-start"))
    if share is None:
        return 0
    return share(_group_size(module, item)) * sum(operand.nbytes for operand in computation.operands(item))


def _group_size(module: Module, item: Instruction) -> int:
    """How many chips take part in a collective together; without groups all of them do."""
    if found := _LISTED_GROUPS.search(item.text):
        return len(found.group(1).split(","))
    if found := _IOTA_GROUPS.search(item.text):
        return int(found.group(1))
    if found := _MESH_GROUPS.search(item.text):
        sizes = {name: int(size) for name, size in _AXIS.findall(found.group(1)) if size}
        named = [name for name, _ in _AXIS.findall(found.group(2) or "")]
        return math.prod(sizes[name] for name in named or sizes if name in sizes)
    return module.devices


def _moved(module: Module, computation: Computation, item: Instruction) -> tuple[float, float]:
    """Bytes of main memory that one instruction reads and writes."""
    operands = computation.operands(item)
    if item.opcode == "fusion":
        body = module[item.called[0]]
        read = 0.0
        for index, operand in enumerate(operands):
            if _in_memory(operand):
                read += min(_read_of_parameter(module, body, body.parameters[index]), operand.nbytes)
        return read, _written_by_fusion(module, body, item)
    results = _results(item)
    if item.opcode in _SLICES:
        sliced = sum(array.nbytes for array in results)
        return sliced * _in_memory(operands[0]), sum(_bytes(array) for array in results)
    if item.opcode in UPDATES:
        update = operands[UPDATES[item.opcode]]
        return update.nbytes * _in_memory(update), update.nbytes * (results[0].memory_space == 0)
    read = sum(_bytes(array) for operand in dict.fromkeys(operands) for array in operand.arrays)
    return read, sum(_bytes(array) for array in results)


def _results(item: Instruction) -> tuple[Array, ...]:
    """What an instruction writes; an asynchronous one also names its operands and a context."""
    if item.opcode == "copy-start":
        return item.arrays[:1]
    if item.opcode.endswith("-start") and len(item.arrays) > len(item.operands):
        return item.arrays[len(item.operands) : len(item.operands) + 1]
    return item.arrays


def _read_of_parameter(module: Module, body: Computation, item: Instruction) -> float:
    """How many bytes of a fusion's parameter, or of what only renames it, the fusion reads."""
    read = 0.0
    for user in body.users[item.name]:
        first = user.operands[0] == item.name
        if user.opcode in _SLICES and first:
            read += user.nbytes
        elif user.opcode in UPDATES and first:
            pass
        elif user.opcode in _SAME_ELEMENTS:
            read += _read_of_parameter(module, body, user)
        elif user.opcode == "fusion":
            nested = module[user.called[0]]
            for index, name in enumerate(user.operands):
                if name == item.name:
                    read += _read_of_parameter(module, nested, nested.parameters[index])
        else:
            return item.nbytes
    if not body.users[item.name]:
        return item.nbytes if item.is_root else 0.0
    return min(read, item.nbytes)


def _written_by_fusion(module: Module, body: Computation, item: Instruction) -> float:
    written = 0.0
    for array, value in zip(item.arrays, fusion_results(module, body), strict=False):
        if array.memory_space == 0:
            owner, made = value
            if made.opcode in UPDATES:
                written += owner.instructions[made.operands[UPDATES[made.opcode]]].nbytes
            else:
                written += array.nbytes
    return written


def fusion_results(module: Module, body: Computation) -> list[tuple[Computation, Instruction]]:
    """What makes each result of a fusion, behind renamings, with the computation that it stands in."""
    root = body.root
    made = body.operands(root) if root.opcode == "tuple" else [root]
    return [_behind_renamings(module, body, item) for item in made]


def _behind_renamings(
    module: Module, body: Computation, item: Instruction
) -> tuple[Computation, Instruction]:
    while item.opcode in ("bitcast", "reshape"):
        item = body.operands(item)[0]
    if item.opcode == "fusion" and len(item.arrays) == 1:
        nested = module[item.called[0]]
        return _behind_renamings(module, nested, nested.root)
    return body, item


def _in_memory(item: Instruction) -> bool:
    return any(array.memory_space == 0 for array in item.arrays)


def _bytes(array: Array) -> int:
    return array.nbytes if array.memory_space == 0 else 0


def _flops(module: Module, computation: Computation, item: Instruction) -> float:
    """Of the matrix products in an instruction, a fusion's included."""
    if item.opcode == "fusion":
        body = module[item.called[0]]
        return sum(_flops(module, body, inner) for inner in body.instructions.values())
    if item.opcode not in ("dot", "convolution", "custom-call"):
        return 0
    operands = computation.operands(item)
    if item.opcode == "convolution":
        return _convolution_flops(item, operands[0].arrays[0], operands[1].arrays[0])
    contracted = re.search(r'lhs_contracting_(?:dims=|dimensions":)[{\[]([^}\]]*)[}\]]', item.text)
    if contracted is None:
        return 0
    lhs = operands[0].arrays[0].dims
    depth = math.prod(lhs[int(axis)] for axis in _NUMBERS.findall(contracted.group(1)))
    return 2 * item.arrays[0].size * depth


def _convolution_flops(item: Instruction, lhs: Array, rhs: Array) -> float:
    """2 x the pairs of elements that meet; TPU programs write batched products as dilated convolutions."""
    lhs_labels, rhs_labels, out_labels = re.split("_|->", item.attribute("dim_labels") or "")
    window = _window(item.attribute("window") or "{}")
    out = item.arrays[0]
    meetings = 1
    for position, label in enumerate(sorted(set(out_labels) - {"b", "f"})):
        meetings *= _meetings(
            inputs=lhs.dims[lhs_labels.index(label)],
            outputs=out.dims[out_labels.index(label)],
            kernel=rhs.dims[rhs_labels.index(label)],
            **{name: values[position] for name, values in window.items()},
        )
    batch, features = out.dims[out_labels.index("b")], out.dims[out_labels.index("f")]
    groups = int(item.attribute("batch_group_count") or 1)
    return 2 * batch * features * rhs.dims[rhs_labels.index("i")] * meetings / groups


def _window(text: str) -> dict[str, list[int]]:
    """The window's settings for each spatial dimension, defaults filled in."""
    given = dict(part.split("=") for part in text.strip("{}").split())
    rank = len(given.get("size", "").split("x")) if given.get("size") else 0

    def numbers(name: str, default: str) -> list[str]:
        return given[name].split("x") if name in given else [default] * rank

    return {
        "stride": [int(value) for value in numbers("stride", "1")],
        "padding": [int(value.split("_")[0]) for value in numbers("pad", "0_0")],
        "lhs_dilation": [int(value) for value in numbers("lhs_dilate", "1")],
        "rhs_dilation": [int(value) for value in numbers("rhs_dilate", "1")],
    }


def _meetings(
    *, inputs: int, outputs: int, kernel: int, stride: int, padding: int, lhs_dilation: int, rhs_dilation: int
) -> int:
    """Along one spatial dimension: how many pairs of an input and a kernel element are multiplied."""
    place = np.arange(outputs)[:, None] * stride + np.arange(kernel) * rhs_dilation - padding
    inside = (place >= 0) & (place < (inputs - 1) * lhs_dilation + 1) & (place % lhs_dilation == 0)
    return int(inside.sum())
