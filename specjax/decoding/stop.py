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
from specjax.sampling.params import ArrayLike, nested, per_row


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
    return RowStop(
        eos_ids=_eos_slots(stop.eos_ids, batch, config.max_eos),
        sequences=_sequence_slots(stop.sequences, batch, config.max_stop, config.max_stop_len),
        max_new_tokens=per_row("max_new_tokens", budget, batch, jnp.int32),
    )


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

    is_eos = jnp.any((block[:, :, None] == stop.eos_ids[:, None, :]) & (stop.eos_ids >= 0)[:, None, :], axis=-1)
    text = jnp.concatenate([history, block], axis=1)
    windows = text[:, slots[:, None] + jnp.arange(longest, dtype=jnp.int32)]  # [B, T, longest], ending at a slot
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


def _eos_slots(eos_ids: Any, batch: int, slots: int) -> jax.Array:
    if isinstance(eos_ids, jax.Array | np.ndarray):
        rows = jnp.asarray(eos_ids, jnp.int32)
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.shape[-1] > slots:
            raise ValueError(f"eos_ids has {rows.shape[-1]} ids; expected at most {slots} (DecodeConfig.max_eos)")
        rows = jnp.pad(rows, ((0, 0), (0, slots - rows.shape[-1])), constant_values=-1)
    else:
        lists = list(eos_ids or ())
        rows = jnp.asarray(_left_packed("eos_ids", lists if nested(lists) else [lists], slots))
    if rows.shape[0] not in (1, batch):
        raise ValueError(f"eos_ids has {rows.shape[0]} rows; expected one for all or one for each of {batch} rows")
    return jnp.broadcast_to(rows, (batch, slots))


def _left_packed(name: str, rows: list[Any], slots: int) -> np.ndarray:
    packed = np.full((len(rows), slots), -1, np.int32)
    for row, ids in zip(packed, rows, strict=True):
        if len(ids) > slots:
            raise ValueError(f"{name} has {len(ids)} ids; expected at most {slots} (DecodeConfig.max_eos)")
        row[: len(ids)] = ids
    return packed


def _sequence_slots(sequences: Any, batch: int, slots: int, longest: int) -> jax.Array:
    per_row_lists = len(sequences) > 0 and len(sequences[0]) > 0 and np.ndim(sequences[0][0]) > 0
    # A row without sequences may come first: [[], [[5, 6]]] has one list for each row.
    per_row_lists |= len(sequences) > 0 and any(len(item) > 0 and np.ndim(item[0]) > 0 for item in sequences)
    rows = list(sequences) if per_row_lists else [sequences]
    if len(rows) not in (1, batch):
        raise ValueError(f"sequences has {len(rows)} rows; expected one list for all or one for each of {batch} rows")
    packed = np.full((len(rows), slots, longest), -1, np.int32)
    for row, row_sequences in enumerate(rows):
        if len(row_sequences) > slots:
            raise ValueError(
                f"sequences holds {len(row_sequences)} for one row; expected at most {slots} (DecodeConfig.max_stop)"
            )
        for slot, sequence in enumerate(row_sequences):
            if not 0 < len(sequence) <= longest:
                raise ValueError(
                    f"sequences holds one of {len(sequence)} tokens; "
                    f"expected 1 to {longest} (DecodeConfig.max_stop_len)"
                )
            packed[row, slot, longest - len(sequence) :] = sequence
    return jnp.broadcast_to(jnp.asarray(packed), (batch, slots, longest))
