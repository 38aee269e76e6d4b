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

from specjax.sampling.matches import match_lengths
from specjax.sampling.params import RowSampling

State = Any  # any pytree of arrays


class Processor(Protocol):
    """A caller's own processor, written for one row; the library applies it to every row.

    An instance is a hashable value, such as a frozen dataclass, and part of the compiled program; or a pytree
    (`jax.tree_util.register_dataclass`), whose arrays are then traced, so that other tables do not compile
    anew. A processor sees the logits after the built-in ones, before temperature and filters. It may set
    logits to -inf, not to NaN or +inf; where it leaves no token, the row ends with an error.

    Examples:
        A processor that forbids to say a token twice in a row:

        >>> @dataclasses.dataclass(frozen=True)
        ... class NoStutter:
        ...     def init(self, prompt, length, vocab_size):
        ...         return prompt[length - 1]
        ...
        ...     def apply(self, last, logits):
        ...         return logits.at[last].set(-jnp.inf)
        ...
        ...     def advance(self, last, token):
        ...         return token
    """

    def init(self, prompt: jax.Array, length: jax.Array, vocab_size: int) -> State:
        """State after the prompt.

        Args:
            prompt: int32[N], of which the first `length` tokens count. N is what the row can hold, prompt
                and output together.
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
        """State after the prompts int32[B, N], of which `lengths` int32[B] tokens count.

        N is what a row can hold, prompt and output together.
        """
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
class Bias:
    """Adds the row's biases: `logits[last id] += bias` where the text ends with the ids before; -inf bans.

    A sequence also counts where it would be longer than the whole text so far by one token, which
    transformers overlooks. State: int32[B, longest - 1], the last tokens of the text, -1 before the first.

    Attributes:
        longest: ids in a sequence, at most.
    """

    longest: int = 1

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> jax.Array:
        source = lengths[:, None] + jnp.arange(1 - self.longest, 0, dtype=jnp.int32)
        tokens = jnp.take_along_axis(prompts, jnp.clip(source, 0, prompts.shape[1] - 1), axis=1)
        return jnp.where(source >= 0, tokens, -1)

    def used(self, rows: RowSampling) -> jax.Array:
        return jnp.any(rows.bias_ids >= 0)

    def apply(self, rows: RowSampling, state: jax.Array, logits: jax.Array) -> jax.Array:
        before, last = rows.bias_ids[:, :, :-1], rows.bias_ids[:, :, -1]
        applies = (last >= 0) & jnp.all((before < 0) | (before == state[:, None, :]), axis=-1)
        ids = jnp.where(applies, last, logits.shape[-1])
        return _at(logits, ids).add(rows.bias_values.astype(logits.dtype), mode="drop")

    def advance(self, state: jax.Array, tokens: jax.Array, valid: jax.Array) -> jax.Array:
        moved = jnp.concatenate([state, tokens[:, None]], axis=1)[:, 1:]
        return jnp.where(valid[:, None], moved, state)


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Text:
    """tokens: int32[B, N]. length: int32[B], how many of them there are."""

    tokens: jax.Array
    length: jax.Array


@dataclasses.dataclass(frozen=True)
class NoRepeatNgram:
    """Bans every token that would complete an n-gram which the text, prompt included, already has."""

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> Text:
        return Text(prompts, lengths)

    def used(self, rows: RowSampling) -> jax.Array:
        return jnp.any(rows.no_repeat_ngram_size > 0)

    def apply(self, rows: RowSampling, state: Text, logits: jax.Array) -> jax.Array:
        before = rows.no_repeat_ngram_size - 1
        matched = match_lengths(state.tokens, state.length, jnp.max(before))
        # How much of the text's end precedes each position; nothing does the first one.
        matched = jnp.pad(matched, ((0, 0), (1, 0)))[:, :-1]
        positions = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)
        completes = (matched >= before[:, None]) & (positions < state.length[:, None])
        ids = jnp.where(completes & (before >= 0)[:, None], state.tokens, logits.shape[-1])
        return _at(logits, ids).set(-jnp.inf, mode="drop")

    def advance(self, state: Text, tokens: jax.Array, valid: jax.Array) -> Text:
        place = jnp.where(valid, state.length, state.tokens.shape[1])
        written = _at(state.tokens, place[:, None]).set(tokens[:, None], mode="drop")
        return Text(written, state.length + valid.astype(jnp.int32))


@dataclasses.dataclass(frozen=True)
class Ends:
    """What concerns the first and the last tokens of the output. State: int32[B], tokens generated.

    Bans the row's EOS ids until it has generated `min_new_tokens`; leaves nothing but the forced token at the
    first place and at the one that uses up the budget; bans the suppressed tokens at the first place.
    """

    def init(self, prompts: jax.Array, lengths: jax.Array, vocab_size: int) -> jax.Array:
        return jnp.zeros(lengths.shape, jnp.int32)

    def used(self, rows: RowSampling) -> jax.Array:
        forced = (rows.forced_first_token >= 0) | (rows.forced_last_token >= 0)
        return jnp.any((rows.min_new_tokens > 0) | forced) | jnp.any(rows.suppressed_first_tokens >= 0)

    def apply(self, rows: RowSampling, state: jax.Array, logits: jax.Array) -> jax.Array:
        vocab_size = logits.shape[-1]
        first, last = state == 0, state == rows.max_new_tokens - 1
        early = (state < rows.min_new_tokens)[:, None] & (rows.eos_ids >= 0)
        logits = _at(logits, jnp.where(early, rows.eos_ids, vocab_size)).set(-jnp.inf, mode="drop")
        for here, forced in ((first, rows.forced_first_token), (last, rows.forced_last_token)):
            others = jnp.arange(vocab_size, dtype=jnp.int32) != forced[:, None]
            only = jnp.where(others, -jnp.inf, 0.0).astype(logits.dtype)
            logits = jnp.where((here & (forced >= 0))[:, None], only, logits)
        suppressed = first[:, None] & (rows.suppressed_first_tokens >= 0)
        ids = jnp.where(suppressed, rows.suppressed_first_tokens, vocab_size)
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
