"""What a caller asks of sampling, and the same as one array a setting with a value for every row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ArrayLike = Any  # a Python number, a NumPy array or a JAX array, traced or not
Ids = Sequence[int]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Each field is one value for all rows or an array with one for each row.

    All of it is traced: other values never compile anew. Order and meaning follow Hugging Face `generate`:
    biases and bans, repetition penalty, presence and frequency penalty, repeated n-grams, minimum length,
    forced and suppressed tokens, the caller's own processors, then temperature, top-k, top-p, min-p. A row
    in which they leave no token ends with an error.

    Attributes:
        temperature: 0 takes the likeliest token (lowest id on a tie) and skips top-k, top-p and min-p;
            above 0 divides the logits.
        top_k: keep the k likeliest tokens and ties with the k-th; 0 keeps all.
        top_p: keep the likeliest tokens that together reach this probability, in (0, 1].
        min_p: keep tokens at least this fraction as likely as the likeliest, in [0, 1].
        repetition_penalty: above 0; divides positive and multiplies negative logits of tokens that occur in
            the prompt or the output (Keskar et al., arXiv 1909.05858). 1 does nothing.
        presence_penalty: subtracted from the logits of tokens that occur in the output.
        frequency_penalty: subtracted once for each occurrence in the output.
        no_repeat_ngram_size: n, for which no n tokens in a row occur twice in prompt and output; 0 is off.
        min_new_tokens: EOS ids cannot be drawn before this many tokens.
        forced_first_token, forced_last_token: the id of the first token of the output, and of the one that
            uses up the row's budget; -1 leaves them free.
        logit_bias: `{token id: added to its logit}`, or a list with one such mapping for each row.
        sequence_bias: `{(id, ..., id): added to the logit of the last one}` where the text ends with the ones
            before, prompt included; or a list with one such mapping for each row.
        banned_tokens: ids that are never drawn, or a list with one list of ids for each row.
        banned_sequences: sequences of ids that are never completed (`bad_words_ids` in Hugging Face), or a
            list with one list of sequences for each row.
        suppressed_first_tokens: ids that are not drawn as first token of the output, or a list with one list
            of ids for each row.
        seed: an array gives each row its own; a single seed means `seed + row`.
    """

    temperature: ArrayLike = 0.0
    top_k: ArrayLike = 0
    top_p: ArrayLike = 1.0
    min_p: ArrayLike = 0.0
    repetition_penalty: ArrayLike = 1.0
    presence_penalty: ArrayLike = 0.0
    frequency_penalty: ArrayLike = 0.0
    no_repeat_ngram_size: ArrayLike = 0
    min_new_tokens: ArrayLike = 0
    forced_first_token: ArrayLike = -1
    forced_last_token: ArrayLike = -1
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float]] = dataclasses.field(default_factory=dict)
    sequence_bias: Mapping[Ids, float] | Sequence[Mapping[Ids, float]] = dataclasses.field(
        default_factory=dict
    )
    banned_tokens: Ids | Sequence[Ids] = ()
    banned_sequences: Sequence[Ids] | Sequence[Sequence[Ids]] = ()
    suppressed_first_tokens: Ids | Sequence[Ids] = ()
    seed: ArrayLike = 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSampling:
    """`Sampling` with one value for each row. Bans are biases of -inf.

    Attributes:
        bias_ids: int32[B, slots, longest], right-aligned, -1 before the first id; all -1 where a slot is
            empty. bias_values: float32[B, slots].
        suppressed_first_tokens: int32[B, slots], -1 where empty.
        eos_ids: int32[B, slots], which `min_new_tokens` keeps from being drawn; -1 where empty.
        max_new_tokens: int32[B], the row's budget, which says where its last token is.
        All others: [B].
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    presence_penalty: jax.Array
    frequency_penalty: jax.Array
    no_repeat_ngram_size: jax.Array
    min_new_tokens: jax.Array
    forced_first_token: jax.Array
    forced_last_token: jax.Array
    bias_ids: jax.Array
    bias_values: jax.Array
    suppressed_first_tokens: jax.Array
    eos_ids: jax.Array
    max_new_tokens: jax.Array

    @property
    def greedy(self) -> jax.Array:
        """bool[B]: rows that take the likeliest token."""
        return self.temperature == 0

    def invalid(self, vocab_size: int) -> jax.Array:
        """bool[B]: rows with a value that no law can be made of."""
        batch = self.temperature.shape[0]
        checks = [valid(getattr(self, name)) for name, (valid, _) in expectations(vocab_size).items()]
        return ~jnp.all(jnp.concatenate([check.reshape(batch, -1) for check in checks], axis=1), axis=1)


def expectations(vocab_size: int) -> dict[str, tuple[Callable[[Any], Any], str]]:
    """For each field of `RowSampling` what it may hold: an elementwise test, which NaN fails, and in words.

    The tests take NumPy and JAX arrays.
    """
    finite = lambda x: abs(x) < jnp.inf  # noqa: E731
    optional_id = (lambda x: (x >= -1) & (x < vocab_size), f"ids from 0 to {vocab_size - 1}")
    return {
        "temperature": (lambda x: (x >= 0) & finite(x), "0 or a positive number"),
        "top_k": (lambda x: x >= 0, "0 (off) or a positive integer"),
        "top_p": (lambda x: (x > 0) & (x <= 1), "a number in (0, 1]"),
        "min_p": (lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]"),
        "repetition_penalty": (lambda x: (x > 0) & finite(x), "a positive number"),
        "presence_penalty": (finite, "a finite number"),
        "frequency_penalty": (finite, "a finite number"),
        "no_repeat_ngram_size": (lambda x: x >= 0, "0 (off) or a positive integer"),
        "min_new_tokens": (lambda x: x >= 0, "0 or a positive integer"),
        "forced_first_token": (optional_id[0], f"-1 (free) or an id from 0 to {vocab_size - 1}"),
        "forced_last_token": (optional_id[0], f"-1 (free) or an id from 0 to {vocab_size - 1}"),
        "bias_ids": optional_id,
        "suppressed_first_tokens": optional_id,
        "bias_values": (lambda x: x < jnp.inf, "finite numbers, or -inf for a ban"),
    }


_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "no_repeat_ngram_size", "min_new_tokens", "forced_first_token", "forced_last_token")


def to_rows(
    sampling: Sampling,
    batch: int,
    *,
    eos_ids: jax.Array,
    max_new_tokens: jax.Array,
    max_bias: int,
    max_bias_len: int = 1,
) -> RowSampling:
    """Gives every row its own value of every setting.

    Args:
        batch: rows, B.
        eos_ids: int32[B, slots]. max_new_tokens: int32[B].
        max_bias: slots for biases and bans, together, and for suppressed first tokens.
        max_bias_len: ids in one of them.

    Raises:
        ValueError: a field has another length than the batch, or there are more biases than slots.
    """
    fields: dict[str, Any] = {
        name: per_row(name, getattr(sampling, name), batch, jnp.float32) for name in _FLOATS
    }
    fields |= {name: per_row(name, getattr(sampling, name), batch, jnp.int32) for name in _INTEGERS}
    ids, values = _bias_slots(sampling, batch, max_bias, max_bias_len)
    name = "suppressed_first_tokens"
    suppressed = id_lists(name, getattr(sampling, name), batch)
    return RowSampling(
        **fields,
        bias_ids=ids,
        bias_values=values,
        suppressed_first_tokens=slots_of(name, suppressed, max_bias, "DecodeConfig.max_bias", batch),
        eos_ids=eos_ids,
        max_new_tokens=max_new_tokens,
    )


def select_rows(sampling: Sampling, order: np.ndarray, batch: int) -> Sampling:
    """The settings of some rows of a batch, in this order; what holds for all rows stays."""

    def select(rows: Any) -> Any:
        return [rows[row] for row in order] if len(rows) == batch else rows

    changes: dict[str, Any] = {
        name: np.asarray(value)[order]
        for name in (*_FLOATS, *_INTEGERS, "seed")
        if np.ndim(value := getattr(sampling, name)) == 1
    }
    for name in ("logit_bias", "sequence_bias"):
        changes[name] = select(_mappings(name, sampling, batch))
    for name in ("banned_tokens", "suppressed_first_tokens"):
        changes[name] = select(id_lists(name, getattr(sampling, name), batch))
    changes["banned_sequences"] = select(sequence_lists("banned_sequences", sampling.banned_sequences, batch))
    return dataclasses.replace(sampling, **changes)


def per_row(name: str, value: ArrayLike, batch: int, dtype: Any) -> jax.Array:
    """One value or an array of `batch` values as `dtype[batch]`.

    Raises:
        TypeError: integers are meant and the value is none.
        ValueError: another length than the batch.
    """
    array = jnp.asarray(value)
    if jnp.issubdtype(dtype, jnp.integer) and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers")
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] != batch):
        raise ValueError(
            f"{name} has shape {array.shape}; expected one value or one for each of {batch} rows"
        )
    return jnp.broadcast_to(array.astype(dtype), (batch,))


def row_seeds(seed: ArrayLike, batch: int) -> jax.Array:
    """uint32[B], modulo 2**32; a single seed means `seed + row`, so that equal prompts in a batch differ."""
    if isinstance(seed, int) and not isinstance(seed, bool):
        seed = np.uint32(seed % 2**32)
    # JAX would refuse numbers beyond 32 bits, which NumPy wraps.
    traced = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(seed))
    seeds = jnp.asarray(seed) if traced else np.asarray(seed)
    if not jnp.issubdtype(seeds.dtype, jnp.integer):
        raise TypeError(f"seed has dtype {seeds.dtype}; expected integers")
    rows = jnp.arange(batch, dtype=jnp.uint32) if seeds.ndim == 0 else jnp.uint32(0)
    return per_row("seed", jnp.asarray(seeds.astype(np.uint32)) + rows, batch, jnp.uint32)


def id_lists(name: str, value: Any, batch: int) -> list[Any]:
    """One list of ids for all rows, or one for each row, as a list of such lists."""
    return _rows(name, value if nested(value) else [value], batch)


def sequence_lists(name: str, value: Any, batch: int) -> list[Any]:
    """One list of sequences for all rows, or one for each row, as a list of such lists."""
    # Rows without sequences tell nothing: [[], [[5, 6]]] has one list for each row, and so has [[], []].
    told = [nested(item) for item in value if len(item) > 0]
    return _rows(name, value if (any(told) if told else len(value) > 0) else [value], batch)


def nested(value: Any) -> bool:
    """Whether `value` holds one collection for each row rather than one for all of them."""
    return len(value) > 0 and (isinstance(value[0], Mapping | Sequence) or np.ndim(value[0]) > 0)


def slots_of(name: str, rows: Sequence[Any], slots: int, setting: str, batch: int) -> jax.Array:
    """Lists of ids, which may be traced, as int32[B, slots], -1 where empty; one list serves all rows.

    Raises:
        ValueError: a list is longer than `slots`, which `setting` decides.
    """
    flat: list[Any] = []
    for ids in rows:
        if len(ids) > slots:
            raise ValueError(f"{name} has {len(ids)} ids for one row; expected at most {slots} ({setting})")
        flat += [*ids, *[-1] * (slots - len(ids))]
    return _packed(flat, (len(rows), slots), batch, jnp.int32)


def sequence_slots_of(
    name: str, rows: Sequence[Any], shape: tuple[int, int], settings: tuple[str, str], batch: int
) -> jax.Array:
    """Lists of sequences of ids as int32[B, slots, longest], right-aligned, -1 before the first id.

    Args:
        rows: one list for each row, or one for all; ids may be traced.
        shape: slots and longest. settings: what decides them.

    Raises:
        ValueError: a list or a sequence is too long, a sequence is empty, or an id is negative, which would
            be taken for an empty place.
    """
    slots, longest = shape
    flat: list[Any] = []
    for row, sequences in enumerate(rows):
        if len(sequences) > slots:
            raise ValueError(
                f"{name} holds {len(sequences)} for one row; expected at most {slots} ({settings[0]})"
            )
        for sequence in sequences:
            _check_sequence(name, sequence, row, longest, settings[1])
            flat += [*[-1] * (longest - len(sequence)), *sequence]
        flat += [-1] * longest * (slots - len(sequences))
    return _packed(flat, (len(rows), slots, longest), batch, jnp.int32)


def _bias_slots(sampling: Sampling, batch: int, slots: int, longest: int) -> tuple[jax.Array, jax.Array]:
    """Biases and bans of each row as (ids int32[B, slots, longest], values float32[B, slots])."""
    arguments: dict[str, list[list[tuple[Any, Any]]]] = {
        "logit_bias": [
            [((token,), bias) for token, bias in row.items()]
            for row in _mappings("logit_bias", sampling, batch)
        ],
        "sequence_bias": [list(row.items()) for row in _mappings("sequence_bias", sampling, batch)],
        "banned_tokens": [
            [((token,), -jnp.inf) for token in row]
            for row in id_lists("banned_tokens", sampling.banned_tokens, batch)
        ],
        "banned_sequences": [
            [(ids, -jnp.inf) for ids in row]
            for row in sequence_lists("banned_sequences", sampling.banned_sequences, batch)
        ],
    }
    settings = ("DecodeConfig.max_bias", "DecodeConfig.max_bias_len")
    for name, rows in arguments.items():
        for row, pairs in enumerate(rows):
            for ids, _ in pairs:
                _check_sequence(name, ids, row, longest, settings[1])
    count = max(map(len, arguments.values()))
    rows = [
        [pair for column in arguments.values() for pair in column[row % len(column)]] for row in range(count)
    ]
    name = "the list of logit_bias, sequence_bias, banned_tokens and banned_sequences"
    ids = sequence_slots_of(
        name, [[ids for ids, _ in row] for row in rows], (slots, longest), settings, batch
    )
    flat = [value for row in rows for value in [*(bias for _, bias in row), *[0.0] * (slots - len(row))]]
    return ids, _packed(flat, (count, slots), batch, jnp.float32)


def _mappings(name: str, sampling: Sampling, batch: int) -> list[Any]:
    value: Any = getattr(sampling, name)
    return _rows(name, [value] if isinstance(value, Mapping) else value, batch)


def _rows(name: str, rows: Any, batch: int) -> list[Any]:
    if len(rows) not in (1, batch):
        raise ValueError(f"{name} has {len(rows)} rows; expected one for all or one for each of {batch} rows")
    return list(rows)


def _check_sequence(name: str, ids: Sequence[Any], row: int, longest: int, setting: str) -> None:
    if not 0 < len(ids) <= longest:
        raise ValueError(f"{name} holds one of {len(ids)} tokens; expected 1 to {longest} ({setting})")
    for token in ids:
        if not isinstance(token, jax.core.Tracer) and token < 0:
            raise ValueError(f"{name} is {token} in row {row}; expected ids from 0")


def _packed(values: Sequence[Any], shape: tuple[int, ...], batch: int, dtype: Any) -> jax.Array:
    """The flat list as an array of `shape` (its values may be traced), one row repeated for the batch."""
    traced = any(isinstance(value, jax.core.Tracer) for value in values)
    array = (
        jnp.stack([jnp.asarray(value, dtype) for value in values]) if traced else jnp.asarray(values, dtype)
    )
    return jnp.broadcast_to(array.reshape(shape), (batch, *shape[1:]))
