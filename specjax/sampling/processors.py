"""Processors: what is done to the target's logits before a token is drawn.

A processor is a small pure state machine over the tokens of a row. Speculation scores several positions at
once, so each position needs the state after the draft tokens before it: the state is advanced along the
draft, and after verification advanced again from the committed state along the tokens that were emitted.
Nothing is ever undone.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from specjax.sampling.params import RowSampling

State = Any  # any pytree of arrays


class Processor(Protocol):
    """A caller's own processor, written for one row; the library applies it to every row.

    Instances are static, so they must be hashable: a frozen dataclass is. A processor sees the logits after
    penalties, bans and minimum length, before temperature and filters. It may set logits to -inf, not to
    NaN or +inf.
    """

    def init(self, prompt: jax.Array, length: jax.Array, vocab_size: int) -> State:
        """State after the prompt.

        Args:
            prompt: int32[P], of which the first `length` tokens count.
            length: int32[].
        """
        ...

    def apply(self, state: State, logits: jax.Array) -> jax.Array:
        """Logits float32[V] of the next token, changed as the processor wants."""
        ...

    def advance(self, state: State, token: jax.Array) -> State:
        """State after one more token, int32[]."""
        ...


class BatchProcessor(Protocol):
    """What the pipeline runs: a processor over a whole batch, skipped where no row uses it."""

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> State:
        """State after the prompts int32[B, P], of which `lengths` int32[B] tokens count."""
        ...

    def used(self, rows: RowSampling) -> jax.Array:
        """bool[]: whether any row needs it."""
        ...

    def apply(self, rows: RowSampling, state: State, logits: jax.Array) -> jax.Array:
        """Logits float32[B, V] of the next token."""
        ...

    def advance(self, state: State, tokens: jax.Array, valid: jax.Array) -> State:
        """State after tokens int32[B]; rows that are not `valid` bool[B] keep theirs."""
        ...


@dataclasses.dataclass(frozen=True)
class LogitBias:
    """Adds the row's biases: `logits[id] += bias`; -inf bans a token. Without state."""

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> State:
        return ()

    def used(self, rows: RowSampling) -> jax.Array:
        return jnp.any(rows.bias_ids >= 0)

    def apply(self, rows: RowSampling, state: State, logits: jax.Array) -> jax.Array:
        ids = jnp.where(rows.bias_ids >= 0, rows.bias_ids, logits.shape[-1])
        return _at(logits, ids).add(rows.bias_values.astype(logits.dtype), mode="drop")

    def advance(self, state: State, tokens: jax.Array, valid: jax.Array) -> State:
        return state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """in_prompt: bool[B, V], the token occurs in the prompt. in_output: int32[B, V], times generated."""

    in_prompt: jax.Array
    in_output: jax.Array


@dataclasses.dataclass(frozen=True)
class Penalties:
    """Repetition, then presence and frequency penalty.

    With c the count of a token in the output: a token in prompt or output has its logit l replaced by
    `l / r` where l > 0, else `l * r`; then `presence * [c > 0] + frequency * c` is subtracted.
    """

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> TokenCounts:
        batch, width = prompts.shape
        real = jnp.arange(width, dtype=jnp.int32) < lengths[:, None]
        ids = jnp.where(real, prompts, vocab_size)
        in_prompt = _at(jnp.zeros((batch, vocab_size), jnp.bool_), ids).set(True, mode="drop")
        return TokenCounts(in_prompt, jnp.zeros((batch, vocab_size), jnp.int32))

    def used(self, rows: RowSampling) -> jax.Array:
        penalised = (
            (rows.repetition_penalty != 1) | (rows.presence_penalty != 0) | (rows.frequency_penalty != 0)
        )
        return jnp.any(penalised)

    def apply(self, rows: RowSampling, state: TokenCounts, logits: jax.Array) -> jax.Array:
        repetition, presence, frequency = (
            value.astype(logits.dtype)[:, None]
            for value in (rows.repetition_penalty, rows.presence_penalty, rows.frequency_penalty)
        )
        counts = state.in_output.astype(logits.dtype)
        penalised = jnp.where(logits > 0, logits / repetition, logits * repetition)
        logits = jnp.where(state.in_prompt | (state.in_output > 0), penalised, logits)
        return logits - presence * (counts > 0) - frequency * counts

    def advance(self, state: TokenCounts, tokens: jax.Array, valid: jax.Array) -> TokenCounts:
        counts = _at(state.in_output, tokens[:, None]).add(valid[:, None].astype(jnp.int32))
        return dataclasses.replace(state, in_output=counts)


@dataclasses.dataclass(frozen=True)
class MinNewTokens:
    """Bans the row's EOS ids until it has generated `min_new_tokens`. State: int32[B], tokens generated."""

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> jax.Array:
        return jnp.zeros(lengths.shape, jnp.int32)

    def used(self, rows: RowSampling) -> jax.Array:
        return jnp.any(rows.min_new_tokens > 0)

    def apply(self, rows: RowSampling, state: jax.Array, logits: jax.Array) -> jax.Array:
        early = (state < rows.min_new_tokens)[:, None] & (rows.eos_ids >= 0)
        ids = jnp.where(early, rows.eos_ids, logits.shape[-1])
        return _at(logits, ids).set(-jnp.inf, mode="drop")

    def advance(self, state: jax.Array, tokens: jax.Array, valid: jax.Array) -> jax.Array:
        return state + valid.astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class PerRow:
    """Runs a caller's `Processor`, written for one row, on every row."""

    processor: Processor

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> State:
        return jax.vmap(lambda prompt, length: self.processor.init(prompt, length, vocab_size))(
            prompts, lengths
        )

    def used(self, rows: RowSampling) -> jax.Array:
        return jnp.bool_(True)

    def apply(self, rows: RowSampling, state: State, logits: jax.Array) -> jax.Array:
        return jax.vmap(self.processor.apply)(state, logits)

    def advance(self, state: State, tokens: jax.Array, valid: jax.Array) -> State:
        def advance_row(state: State, token: jax.Array, valid: jax.Array) -> State:
            advanced = self.processor.advance(state, token)
            return jax.tree.map(lambda new, old: jnp.where(valid, new, old), advanced, state)

        return jax.vmap(advance_row)(state, tokens, valid)


def _at(array: jax.Array, ids: jax.Array) -> Any:
    """`array.at` of [B, V] indexed by ids [B, N], row by row."""
    return array.at[jnp.arange(array.shape[0])[:, None], ids]
