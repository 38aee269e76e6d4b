"""What must hold in every round, checked inside the loop without leaving the device."""

from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Violation(enum.IntFlag):
    """Bits of the per-row `violations` word.

    The first four are cheap and always checked, the others with `DecodeConfig.debug`.
    """

    LIVE_RANGE = 1
    ACCEPTED_RANGE = 2
    LENGTH_RANGE = 4
    FINISHED_MOVED = 8
    CACHE_LENGTH = 16
    DRAFT_AHEAD = 32
    TEXT_AFTER_END = 64
    REJECTED_TOKEN = 128
    POSITIONS = 256


MEANING = {
    Violation.LIVE_RANGE: "live draft tokens are within 0..gamma and within the budget",
    Violation.ACCEPTED_RANGE: "accepted tokens are within 0..live",
    Violation.LENGTH_RANGE: "the committed length is within the capacity",
    Violation.FINISHED_MOVED: "a finished row emits nothing",
    Violation.CACHE_LENGTH: "the target's cache holds the committed length - 1",
    Violation.DRAFT_AHEAD: "the draft's cache holds no more than the committed length - 1",
    Violation.TEXT_AFTER_END: "nothing but padding follows the committed text",
    Violation.REJECTED_TOKEN: "every emitted token is allowed by the target, in greedy rows its likeliest",
    Violation.POSITIONS: "verified tokens are at consecutive positions from the last committed one on",
}


class InvariantError(RuntimeError):
    """An invariant of the decoding loop broke: a fault of the library, of the draft or of the model."""


def flags(checks: dict[Violation, jax.Array]) -> jax.Array:
    """uint32[B] from `{violation: bool[B], True where it holds}`."""
    words = [jnp.where(holds, jnp.uint32(0), jnp.uint32(bit)) for bit, holds in checks.items()]
    return jnp.stack(words).sum(axis=0, dtype=jnp.uint32)


def describe(violations: Any) -> str:
    """One line for each row and broken invariant of a concrete uint32[B]; empty when none broke."""
    lines = []
    for row, word in enumerate(np.asarray(violations)):
        for bit in Violation:
            if int(word) & bit:
                lines.append(f"row {row}: {bit.name} broke: {MEANING[bit]}")
    return "\n".join(lines)


def raise_on_violation(violations: Any) -> None:
    """Raises `InvariantError` that names every row and invariant that broke."""
    if text := describe(violations):
        raise InvariantError(text)
