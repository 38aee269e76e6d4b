"""Where a generation ends: EOS ids, stop sequences, budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.config import DecodeConfig, FinishReason
from specjax.sampling.params import ArrayLike, id_lists, per_row, sequence_lists, sequence_slots_of, slots_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop:
    """What ends a row. All of it is traced: other values never compile anew.

    The earliest end wins; on the same token, EOS before a stop sequence before the budget. The token that
    ends a row is part of the output.

    Attributes:
        eos_ids: token ids, or one list of ids for each row. None: those of the target model.
        sequences: token sequences, or one list of sequences for each row. They are looked for in generated
            tokens only, never across the end of the prompt.
        max_new_tokens: budget of all rows or of each; None: `DecodeConfig.max_new_tokens`.
    """

    eos_ids: Sequence[int] | Sequence[Sequence[int]] | ArrayLike | None = None
    sequences: Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]] = ()
    max_new_tokens: ArrayLike | None = None

    def at_most(self, max_new_tokens: int) -> Stop:
        """The same with budgets of no more than `max_new_tokens`."""
        own = max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        return dataclasses.replace(self, max_new_tokens=jnp.minimum(jnp.asarray(own), max_new_tokens))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowStop:
    """`Stop` for each row.

    Attributes:
        eos_ids: int32[B, slots], -1 where empty.
        sequences: int32[B, slots, longest], right-aligned, -1 before the first token; all -1 where empty.
        max_new_tokens: int32[B].
    """

    eos_ids: jax.Array
    sequences: jax.Array
    max_new_tokens: jax.Array


def to_rows(stop: Stop, batch: int, config: DecodeConfig) -> RowStop:
    """Gives every row its own ends.

    Raises:
        ValueError: more ids, sequences or tokens in a sequence than the configuration has slots for.
    """
    budget = config.max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    eos_ids = _eos_lists(() if stop.eos_ids is None else stop.eos_ids, batch)
    return RowStop(
        eos_ids=slots_of("eos_ids", eos_ids, config.max_eos, "DecodeConfig.max_eos", batch),
        sequences=sequence_slots_of(
            "sequences",
            sequence_lists("sequences", stop.sequences, batch),
            (config.max_stop, config.max_stop_len),
            ("DecodeConfig.max_stop", "DecodeConfig.max_stop_len"),
            batch,
        ),
        max_new_tokens=per_row("max_new_tokens", budget, batch, jnp.int32),
    )


def select_stop(stop: Stop, order: np.ndarray, batch: int) -> Stop:
    """The ends of some rows of a batch, in this order; what holds for all rows stays."""

    def select(rows: list[Any]) -> list[Any]:
        return [rows[row] for row in order] if len(rows) == batch else rows[0]

    changes: dict[str, Any] = {"sequences": select(sequence_lists("sequences", stop.sequences, batch))}
    if stop.eos_ids is not None:
        changes["eos_ids"] = select(_eos_lists(stop.eos_ids, batch))
    if np.ndim(stop.max_new_tokens) == 1:
        changes["max_new_tokens"] = np.asarray(stop.max_new_tokens)[order]
    return dataclasses.replace(stop, **changes)


def _eos_lists(eos_ids: Any, batch: int) -> list[Any]:
    """One list of ids for all rows, or one for each row, as a list of such lists."""
    if not isinstance(eos_ids, Sequence):
        eos_ids = list(jnp.atleast_1d(jnp.asarray(eos_ids)))
    return id_lists("eos_ids", eos_ids, batch)


def find_end(
    stop: RowStop, block: jax.Array, count: jax.Array, history: jax.Array, generated: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cuts a block of new tokens at the row's end.

    Args:
        block: int32[B, T], new tokens, of which the first `count` int32[B] are real.
        history: int32[B, longest - 1], the generated tokens before the block, right-aligned, -1 before the
            first.
        generated: int32[B], how many tokens the row had generated before the block.

    Returns:
        emitted int32[B] and finish_reason int32[B], RUNNING where the row goes on.
    """
    batch, width = block.shape
    longest = stop.sequences.shape[-1]
    chex.assert_shape(history, (batch, longest - 1))
    slots = jnp.arange(width, dtype=jnp.int32)

    listed = (stop.eos_ids >= 0)[:, None, :]
    is_eos = jnp.any((block[:, :, None] == stop.eos_ids[:, None, :]) & listed, axis=-1)
    text = jnp.concatenate([history, block], axis=1)
    # [B, T, longest], each ending at a slot.
    windows = text[:, slots[:, None] + jnp.arange(longest, dtype=jnp.int32)]
    wanted = stop.sequences[:, :, None, :]
    matches = jnp.all((wanted < 0) | (wanted == windows[:, None]), axis=-1) & jnp.any(wanted >= 0, axis=-1)
    is_stop = jnp.any(matches, axis=1)

    ends = (is_eos | is_stop) & (slots < count[:, None])
    first = jnp.where(jnp.any(ends, axis=1), jnp.argmax(ends, axis=1).astype(jnp.int32), width)
    room = stop.max_new_tokens - generated
    emitted = jnp.minimum(jnp.minimum(first + 1, count), room)

    ended = first < emitted
    at_end = jnp.minimum(first, width - 1)[:, None]
    eos_there = jnp.take_along_axis(is_eos, at_end, axis=1)[:, 0]
    marked = jnp.where(eos_there, int(FinishReason.EOS), int(FinishReason.STOP))
    unmarked = jnp.where(emitted >= room, int(FinishReason.LENGTH), int(FinishReason.RUNNING))
    return emitted, jnp.where(ended, marked, unmarked).astype(jnp.int32)
