"""What a decoding program should not do: copy a cache, talk to the host, write rows layer by layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator

from specjax.hlo.module import Array, Computation, Instruction, Module
from specjax.hlo.traffic import UPDATES, fusion_results

# What makes a new array of the elements of an old one. A broadcast is not among them: a fresh cache is one.
_COPIES = frozenset(
    {"copy", "copy-start", "transpose", "convert", "select", "concatenate", "reverse", "gather"}
)
_HOST_OPCODES = frozenset({"infeed", "outfeed", "send", "recv"})
_HOST_MEMORY = 5

Shape = tuple[int, ...]


def loop_of_rounds(module: Module) -> str:
    """The body of the loop that a program spends its time in: of the outermost ones that which carries most.

    Raises:
        ValueError: the program has no loop.
    """
    outermost, pending = [], [module.entry]
    while pending:
        for item in module[pending.pop()].instructions.values():
            if item.opcode == "while":
                outermost.append(item)
            elif item.opcode == "call":
                pending.extend(item.called)
    if not outermost:
        raise ValueError("the program has no loop at its top level")
    return max(outermost, key=lambda item: len(item.arrays)).called[1]


def cache_copies(module: Module, shapes: Collection[Shape], start: str | None = None) -> list[str]:
    """Instructions that make a new array of all the elements of a cache's, in words.

    Updates in place are none, nor is a prefetch into on-chip memory, nor what a fresh cache is filled with.

    Args:
        shapes: of the cache's arrays on one device. Arrays of the same elements with permuted, merged or
            split axes count too.
        start: the computation whose program is searched; None: everything.
    """
    found = []
    for computation in module.reachable(start or module.entry):
        for item in computation.instructions.values():
            for array, made in _made(module, computation, item):
                if array.memory_space == 0 and made in _COPIES and _is_cache(array, shapes):
                    found.append(f"{made} {array} (%{item.name} in %{computation.name})")
    return found


def _made(module: Module, computation: Computation, item: Instruction) -> Iterator[tuple[Array, str]]:
    """Arrays that an instruction makes, and the opcode that makes each."""
    if item.opcode == "fusion":
        results = fusion_results(module, module[item.called[0]])
        for array, (body, made) in zip(item.arrays, results, strict=False):
            if not _is_filled(module, body, made):
                yield array, made.opcode
    elif item.opcode in ("copy", "copy-start"):
        from_chip = any(array.memory_space for array in computation.operands(item)[0].arrays)
        if not from_chip and not _is_filled(module, computation, item):
            yield item.arrays[0], item.opcode
    else:
        yield from ((array, item.opcode) for array in item.arrays)


def _is_filled(module: Module, computation: Computation, item: Instruction) -> bool:
    """Whether an array, or what it is a copy of, is one value everywhere."""
    while item.opcode in ("copy", "copy-start", "copy-done", "bitcast", "get-tuple-element"):
        item = computation.operands(item)[0]
    if item.opcode == "fusion":
        results = fusion_results(module, module[item.called[0]])
        return all(_is_filled(module, body, made) for body, made in results)
    return item.opcode in ("broadcast", "constant")


def _is_cache(array: Array, shapes: Collection[Shape]) -> bool:
    return any(
        array.size == math.prod(shape) and (_merges(array.dims, shape) or _merges(shape, array.dims))
        for shape in shapes
    )


def _merges(merged: Shape, axes: Shape) -> bool:
    """Whether each number of `merged` is a product of some of `axes`, each used once."""
    merged, axes = (tuple(size for size in sizes if size != 1) for sizes in (merged, axes))
    if not merged:
        return not axes
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(range(len(axes)), count):
            if math.prod(axes[i] for i in chosen) == merged[0]:
                rest = tuple(size for i, size in enumerate(axes) if i not in chosen)
                if _merges(merged[1:], rest):
                    return True
    return False


def host_transfers(module: Module) -> list[str]:
    """Instructions that exchange data with the host, in words."""
    found = []
    for computation in module.reachable(module.entry):
        for item in computation.instructions.values():
            callback = item.opcode == "custom-call" and "callback" in (
                item.attribute("custom_call_target") or ""
            )
            in_host_memory = any(array.memory_space == _HOST_MEMORY for array in item.arrays)
            if item.opcode in _HOST_OPCODES or callback or in_host_memory:
                found.append(f"{item.opcode} (%{item.name} in %{computation.name})")
    return found


def row_write_loops(module: Module, shapes: Collection[Shape], start: str | None = None) -> int:
    """Loops whose body updates an array of a cache in place: a ragged write goes row by row on TPU."""
    return sum(
        any(_updates_cache(module, module[loop.called[1]], item, shapes) for item in _body(module, loop))
        for _, loop in module.loops(start or module.entry)
    )


def _body(module: Module, loop: Instruction) -> Collection[Instruction]:
    return module[loop.called[1]].instructions.values()


def _updates_cache(module: Module, body: Computation, item: Instruction, shapes: Collection[Shape]) -> bool:
    if item.opcode in UPDATES:
        return _is_cache(item.arrays[0], shapes)
    if item.opcode != "fusion":
        return False
    results = fusion_results(module, module[item.called[0]])
    return any(
        made.opcode in UPDATES and _is_cache(array, shapes)
        for array, (_, made) in zip(item.arrays, results, strict=False)
    )
