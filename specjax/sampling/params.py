"""What a caller asks of sampling, and the same as one array a setting with a value for every row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ArrayLike = Any  # a Python number, a NumPy array or a JAX array, traced or not


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Each field is one value for all rows or an array with one for each row.

    All of it is traced: other values never compile anew. Order and meaning follow Hugging Face `generate`:
    logit bias, repetition penalty, presence and frequency penalty, bans, minimum length, the caller's own
    processors, then temperature, top-k, top-p, min-p.

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
        min_new_tokens: EOS ids cannot be drawn before this many tokens.
        logit_bias: `{token id: added to its logit}`, or a list with one such mapping for each row.
        banned_tokens: ids that are never drawn, or a list with one list of ids for each row.
        seed: an array gives each row its own; a single seed means `seed + row`.
    """

    temperature: ArrayLike = 0.0
    top_k: ArrayLike = 0
    top_p: ArrayLike = 1.0
    min_p: ArrayLike = 0.0
    repetition_penalty: ArrayLike = 1.0
    presence_penalty: ArrayLike = 0.0
    frequency_penalty: ArrayLike = 0.0
    min_new_tokens: ArrayLike = 0
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float]] = dataclasses.field(default_factory=dict)
    banned_tokens: Sequence[int] | Sequence[Sequence[int]] = ()
    seed: ArrayLike = 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSampling:
    """`Sampling` with one value for each row. Bans are biases of -inf.

    Attributes:
        bias_ids: int32[B, slots], -1 where a slot is empty. bias_values: float32[B, slots].
        eos_ids: int32[B, slots], which `min_new_tokens` keeps from being drawn; -1 where empty.
        All others: [B].
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    presence_penalty: jax.Array
    frequency_penalty: jax.Array
    min_new_tokens: jax.Array
    bias_ids: jax.Array
    bias_values: jax.Array
    eos_ids: jax.Array

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
    return {
        "temperature": (lambda x: (x >= 0) & finite(x), "0 or a positive number"),
        "top_k": (lambda x: x >= 0, "0 (off) or a positive integer"),
        "top_p": (lambda x: (x > 0) & (x <= 1), "a number in (0, 1]"),
        "min_p": (lambda x: (x >= 0) & (x <= 1), "a number in [0, 1]"),
        "repetition_penalty": (lambda x: (x > 0) & finite(x), "a positive number"),
        "presence_penalty": (finite, "a finite number"),
        "frequency_penalty": (finite, "a finite number"),
        "min_new_tokens": (lambda x: x >= 0, "0 or a positive integer"),
        "bias_ids": (lambda x: (x >= -1) & (x < vocab_size), f"ids from 0 to {vocab_size - 1}"),
        "bias_values": (lambda x: x < jnp.inf, "finite numbers, or -inf for a ban"),
    }


_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "min_new_tokens")


def to_rows(sampling: Sampling, batch: int, *, eos_ids: jax.Array, max_bias: int) -> RowSampling:
    """Gives every row its own value of every setting.

    Args:
        batch: rows, B.
        eos_ids: int32[B, slots].
        max_bias: slots for biased and banned tokens, together.

    Raises:
        ValueError: a field has another length than the batch, or there are more biases than slots.
    """
    fields: dict[str, Any] = {
        name: per_row(name, getattr(sampling, name), batch, jnp.float32) for name in _FLOATS
    }
    fields |= {name: per_row(name, getattr(sampling, name), batch, jnp.int32) for name in _INTEGERS}
    ids, values = _bias_slots(sampling, batch, max_bias)
    return RowSampling(**fields, bias_ids=ids, bias_values=values, eos_ids=eos_ids)


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


def nested(value: Any) -> bool:
    """Whether `value` holds one collection for each row rather than one for all of them."""
    return len(value) > 0 and (isinstance(value[0], Mapping | Sequence) or np.ndim(value[0]) > 0)


def _bias_slots(sampling: Sampling, batch: int, slots: int) -> tuple[jax.Array, jax.Array]:
    """Biases and bans of each row as (ids int32[B, slots], values float32[B, slots])."""
    biases: Any = sampling.logit_bias
    bans: Any = sampling.banned_tokens
    row_biases = [biases] if isinstance(biases, Mapping) else list(biases)
    row_bans = list(bans) if nested(bans) else [bans]
    for name, rows in (("logit_bias", row_biases), ("banned_tokens", row_bans)):
        if len(rows) not in (1, batch):
            raise ValueError(
                f"{name} has {len(rows)} rows; expected one for all or one for each of {batch} rows"
            )

    rows = max(len(row_biases), len(row_bans))
    ids, values = [], []
    for row in range(rows):
        bias, banned = row_biases[row % len(row_biases)], row_bans[row % len(row_bans)]
        refuse_negative("logit_bias", list(bias), row)
        refuse_negative("banned_tokens", banned, row)
        pairs = [*bias.items(), *((token, -jnp.inf) for token in banned)]
        if len(pairs) > slots:
            raise ValueError(
                f"logit_bias and banned_tokens hold {len(pairs)} tokens for one row; "
                f"expected at most {slots} (DecodeConfig.max_bias)"
            )
        pairs += [(-1, 0.0)] * (slots - len(pairs))
        ids += [token for token, _ in pairs]
        values += [value for _, value in pairs]
    return packed(ids, (rows, slots), batch, jnp.int32), packed(values, (rows, slots), batch, jnp.float32)


def refuse_negative(name: str, ids: Sequence[Any], row: int) -> None:
    """Raises ValueError for a row's token id below 0, which would be taken for an empty slot."""
    for token in ids:
        if not isinstance(token, jax.core.Tracer) and token < 0:
            raise ValueError(f"{name} is {token} in row {row}; expected ids from 0")


def packed(values: Sequence[Any], shape: tuple[int, ...], batch: int, dtype: Any) -> jax.Array:
    """The flat list as an array of `shape` (its values may be traced), one row repeated for the batch."""
    traced = any(isinstance(value, jax.core.Tracer) for value in values)
    array = (
        jnp.stack([jnp.asarray(value, dtype) for value in values]) if traced else jnp.asarray(values, dtype)
    )
    return jnp.broadcast_to(array.reshape(shape), (batch, *shape[1:]))
