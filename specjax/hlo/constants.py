"""Small integers that a program computes from constants alone, which compilers do not always fold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from specjax.hlo.module import Computation, Instruction, Module

_LARGEST = 1 << 16  # elements; what decides about loops is small
_NUMBER = re.compile(r"-?\d+|true|false")
_INTEGERS = re.compile(r"[su](8|16|32|64)|pred")
_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_BITS = 0xFFFFFFFF

Value = np.ndarray | None


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))


_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _truncated,
    "remainder": lambda a, b: a - b * _truncated(a, b),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "select": np.where,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "shift-left": np.left_shift,
    "shift-right-arithmetic": np.right_shift,
    "shift-right-logical": lambda a, b: (a & _BITS) >> b,
}
_COMPARISONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_REDUCTIONS = {"add": np.sum, "maximum": np.max, "minimum": np.min, "and": np.all, "or": np.any}
_COPIES = frozenset({"copy", "copy-start", "copy-done", "convert", "opt-barrier"})


class Constants:
    """Values in one computation.

    Args:
        known: values of some instructions, by name, such as parameters.
    """

    def __init__(
        self, module: Module, computation: Computation, known: Mapping[str, Value] | None = None
    ) -> None:
        self._module, self._computation = module, computation
        self._values: dict[str, Value] = dict(known or {})

    def __getitem__(self, item: Instruction) -> Value:
        """The value of an instruction's result; None if it is not known, not of whole numbers, or large."""
        if item.name not in self._values:
            self._values[item.name] = None  # what leads back to itself is not known
            self._values[item.name] = self._evaluate(item)
        return self._values[item.name]

    def _evaluate(self, item: Instruction) -> Value:
        if len(item.arrays) == 0 or item.arrays[0].size > _LARGEST:
            return None
        if not _INTEGERS.fullmatch(item.arrays[0].dtype):
            return None
        dims = item.arrays[0].dims
        if item.opcode == "constant":
            return _literal(item.text, dims)
        if item.opcode == "iota":
            axis = int(item.attribute("iota_dimension") or 0)
            counted = np.arange(dims[axis]).reshape([-1 if i == axis else 1 for i in range(len(dims))])
            return np.broadcast_to(counted, dims)
        operands = [self[operand] for operand in self._computation.operands(item)]
        if item.opcode == "fusion" and len(item.arrays) == 1:
            body = self._module[item.called[0]]
            given = {parameter.name: operands[index] for index, parameter in body.parameters.items()}
            return Constants(self._module, body, given)[body.root]
        if not operands or len(operands) != len(item.operands) or any(value is None for value in operands):
            return None
        return self._apply(item, [value for value in operands if value is not None], dims)

    def _apply(self, item: Instruction, operands: list[np.ndarray], dims: tuple[int, ...]) -> Value:
        first = operands[0]
        if item.opcode in _COPIES:
            return first
        if item.opcode in ("reshape", "bitcast"):
            return _renamed(first, dims)
        if item.opcode == "broadcast":
            axes = _numbers(item.attribute("dimensions"))
            return np.broadcast_to(
                first.reshape([dims[i] if i in axes else 1 for i in range(len(dims))]), dims
            )
        if item.opcode == "slice":
            parts = _SLICE.findall(item.text[item.text.index("slice={") :])
            return first[tuple(slice(int(low), int(high), int(step or 1)) for low, high, step in parts)]
        if item.opcode == "dynamic-slice":
            sizes = zip(first.shape, dims, operands[1:], strict=True)
            starts = [int(np.clip(start, 0, whole - part)) for whole, part, start in sizes]
            return first[tuple(slice(low, low + part) for low, part in zip(starts, dims, strict=True))]
        if item.opcode == "compare":
            return _COMPARISONS[item.attribute("direction") or "EQ"](*operands).astype(np.int64)
        if item.opcode == "not":
            return 1 - first if item.arrays[0].dtype == "pred" else ~first
        if item.opcode == "reduce":
            function = _REDUCTIONS.get(self._module[item.called[0]].root.opcode)
            axes = tuple(_numbers(item.attribute("dimensions")))
            return None if function is None else np.asarray(function(first, axis=axes), np.int64)
        function = _ELEMENTWISE.get(item.opcode)
        return None if function is None else np.asarray(function(*operands))


def _renamed(value: np.ndarray, dims: tuple[int, ...]) -> Value:
    """The same bytes in another shape; a TPU program takes the first elements of a list by naming fewer."""
    size = np.prod(dims, dtype=int)
    if value.ndim == 1:
        value = value[:size]
    return value.reshape(dims) if value.size == size else None


def _literal(text: str, dims: tuple[int, ...]) -> Value:
    """Of `constant(3)`, `constant(true)` or `constant({7, 8})`; long ones are not printed."""
    written = _NUMBER.findall(text[text.index("(") + 1 : text.index(")")])
    values = [int(number == "true") if number in ("true", "false") else int(number) for number in written]
    return np.array(values, np.int64).reshape(dims) if len(values) == np.prod(dims, dtype=int) else None


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]
