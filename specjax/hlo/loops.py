"""How often loops run, where their program says so."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from specjax.hlo.constants import Constants, Value
from specjax.hlo.module import Computation, Instruction, Module

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Trips:
    """What is known of a loop.

    Attributes:
        count: how often its body runs; None if that depends on data.
        known: values in the body, by name: of what no round changes, and of the counter in the last round.
    """

    count: int | None
    known: dict[str, Value]


def trips(module: Module, computation: Computation, loop: Instruction, constants: Constants) -> Trips:
    """How often a loop's body runs: a number that the compiler left, none, or by ones up to a bound.

    Args:
        computation: where the loop stands. constants: its values.
    """
    condition, body = (module[name] for name in loop.called)
    carried = computation.operands(loop)[0]
    if carried.opcode != "tuple":
        return Trips(_stated(loop), {})
    start = [constants[computation.instructions[name]] for name in carried.operands]
    tested = Constants(module, condition, _carried(condition, dict(enumerate(start))))
    runs = tested[condition.root]
    if runs is not None and not runs:
        return Trips(0, {})
    invariant = {index: start[index] for index in range(len(start)) if _is_invariant(body, index)}
    counter, count = None, _stated(loop)
    if (sides := _test(module, condition)) is not None:
        low, high = (tested[side] for side in sides)
        index = int(sides[0].attribute("index") or -1) if sides[0].opcode == "get-tuple-element" else -1
        if low is not None and high is not None and index >= 0:
            counter, count = (index, int(high) - 1), max(int(high) - int(low), 0) if count is None else count
    if counter is not None:
        invariant[counter[0]] = np.array(counter[1])
    return Trips(count, _carried(body, invariant))


def _stated(loop: Instruction) -> int | None:
    found = _TRIPS.search(loop.text)
    return int(found.group(1)) if found else None


def _test(module: Module, condition: Computation) -> tuple[Instruction, Instruction] | None:
    """The two sides of `counter < bound`, as instructions of the condition."""
    test, sides = condition.root, condition.operands(condition.root)
    if test.opcode == "fusion":
        body = module[test.called[0]]
        arguments = {parameter.name: sides[index] for index, parameter in body.parameters.items()}
        test = body.root
        sides = [arguments[name] for name in test.operands if name in arguments]
    if test.opcode != "compare" or test.attribute("direction") != "LT" or len(sides) != 2:
        return None
    return sides[0], sides[1]


def _carried(computation: Computation, values: dict[int, Value]) -> dict[str, Value]:
    """The values of what a loop carries, by the names that the condition or the body gives them."""
    [parameter] = computation.parameters.values()
    return {
        item.name: values.get(int(item.attribute("index") or 0))
        for item in computation.users[parameter.name]
        if item.opcode == "get-tuple-element" and int(item.attribute("index") or 0) in values
    }


def _is_invariant(body: Computation, index: int) -> bool:
    """Whether a loop hands an element of what it carries on as it is."""
    [parameter] = body.parameters.values()
    if body.root.opcode != "tuple":
        return False
    item = body.instructions.get(body.root.operands[index])
    while item is not None and item.opcode in ("copy", "copy-start", "copy-done"):
        item = body.operands(item)[0]
    return (
        item is not None
        and item.opcode == "get-tuple-element"
        and item.operands == (parameter.name,)
        and int(item.attribute("index") or 0) == index
    )
