"""What a generation carries from round to round, and what it returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from specjax.decoding.stop import RowStop
from specjax.sampling import RowSampling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What each row was asked for. seed: uint32[B]."""

    sampling: RowSampling
    draft_sampling: RowSampling
    stop: RowStop
    seed: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
    """What speculation did, for each row. Nothing in a round depends on it.

    Attributes:
        rounds: int32[B], rounds in which the row was running.
        emitted: int32[B], tokens that became text.
        drafted, accepted: int32[B], live draft tokens, and those of them that became text.
        drafted_at, accepted_at: int32[B, gamma], the same for each position of the draft.
        draft_failures: int32[B], rounds in which the draft's logits were not finite.
    """

    rounds: jax.Array
    emitted: jax.Array
    drafted: jax.Array
    accepted: jax.Array
    drafted_at: jax.Array
    accepted_at: jax.Array
    draft_failures: jax.Array

    @property
    def mean_tokens_per_round(self) -> jax.Array:
        """float32[B]: emitted / rounds, the target's own token of each round included; 0 without rounds."""
        return self.emitted / jax.numpy.maximum(self.rounds, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeState:
    """Everything that a round reads and writes.

    Attributes:
        tokens: int32[B, N], committed text, then padding.
        length: int32[B], committed length, prompt included.
        prompt_length: int32[B], where the generated tokens begin.
        cached_length: int32[B], tokens in the target's cache: committed length - 1, because the last token
            is fed in the next round.
        finish_reason: int32[B], a `FinishReason`.
        round: int32[B], rounds the request has been through; keys its noise.
        cache: the target's. draft: the draft's carry. processors: the processors' states. policy: the length
            policy's.
        logprobs, raw_logprobs: float32[B, max_new_tokens] or None, of generated tokens, after and before
            processing.
        violations: uint32[B], invariants that broke, bits of `Violation`.
    """

    tokens: jax.Array
    length: jax.Array
    prompt_length: jax.Array
    cached_length: jax.Array
    finish_reason: jax.Array
    round: jax.Array
    request: Request
    cache: Any
    draft: Any
    processors: Any
    policy: Any
    logprobs: jax.Array | None
    raw_logprobs: jax.Array | None
    violations: jax.Array
    stats: Stats

    @property
    def running(self) -> jax.Array:
        """bool[B], rows that are not finished."""
        return self.finish_reason == 0


def where_rows(rows: jax.Array, new: Any, old: Any) -> Any:
    """Arrays of `new` in the rows bool[B], of `old` in the others; their leaves lead with B."""

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jax.numpy.where(rows.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """What was generated.

    Attributes:
        tokens: int32[B, max_new_tokens], padded with `DecodeConfig.pad_id`. EOS and stop tokens are part.
        lengths: int32[B].
        finish_reasons: int32[B], `FinishReason`.
        logprobs: float32[B, max_new_tokens] or None, of each token under the law it was drawn from: after
            penalties, bans, temperature and filters (greedy rows have neither temperature nor filters).
        raw_logprobs: float32[B, max_new_tokens] or None, under the model's own logits.
        violations: uint32[B], bits of `Violation`; all zero unless the library or the model is at fault.
        stats: `Stats`.
    """

    tokens: jax.Array
    lengths: jax.Array
    finish_reasons: jax.Array
    logprobs: jax.Array | None
    raw_logprobs: jax.Array | None
    violations: jax.Array
    stats: Stats
