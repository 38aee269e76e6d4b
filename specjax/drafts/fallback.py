"""One draft where it has something to say, another where it has not."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafts.base import BaseDraft
from specjax.drafts.protocol import (
    Carry,
    Draft,
    Features,
    Outcome,
    Proposal,
    RoundContext,
    propose_if_wanted,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FallbackCarry:
    """first, second: the carries of both drafts. used_first: bool[B], whose proposal the round took."""

    first: Carry
    second: Carry
    used_first: jax.Array


@dataclasses.dataclass(frozen=True)
class Fallback(BaseDraft):
    """Each row takes what `first` proposes, or, where that is nothing, what `second` does.

    A search in the text knows when it has found nothing, and costs little: a draft that costs more is only
    run in rounds in which some row needs it. Which of the two a row uses is decided before anything is drawn,
    by text that is committed; so the law of what it proposes is known. Where `second` has a law to draw from,
    tokens of `first` count as drawn from a law that is certain of them. Both learn from every outcome.

    Attributes:
        first: a draft without a law, that is, a point mass: `Ngram`, `Recycling`, or two of them.
        second: any draft, also another `Fallback`.
    """

    first: Draft
    second: Draft

    @property
    def module(self) -> tuple[Any, Any]:
        return self.first.module, self.second.module

    @property
    def taps(self) -> tuple[int, ...]:
        return (*self.first.taps, *self.second.taps)

    def without_module(self) -> Fallback:
        return Fallback(self.first.without_module(), self.second.without_module())

    def check_target(self, target: Any) -> None:
        self.first.check_target(target)
        self.second.check_target(target)

    def init(self, module: Any, batch: int, capacity: int, vocab_size: int) -> FallbackCarry:
        first, second = (
            draft.init(own, batch, capacity, vocab_size)
            for draft, own in zip((self.first, self.second), module, strict=True)
        )
        return FallbackCarry(first, second, jnp.zeros(batch, jnp.bool_))

    def absorb(
        self,
        module: Any,
        carry: FallbackCarry,
        features: Features,
        next_tokens: jax.Array,
        start: jax.Array,
        count: jax.Array,
    ) -> FallbackCarry:
        of_first, of_second = self._split(features)
        return dataclasses.replace(
            carry,
            first=self.first.absorb(module[0], carry.first, of_first, next_tokens, start, count),
            second=self.second.absorb(module[1], carry.second, of_second, next_tokens, start, count),
        )

    def prefill(
        self, module: Any, carry: FallbackCarry, tokens: jax.Array, length: jax.Array, chunk: int
    ) -> FallbackCarry:
        return dataclasses.replace(
            carry,
            first=self.first.prefill(module[0], carry.first, tokens, length, chunk),
            second=self.second.prefill(module[1], carry.second, tokens, length, chunk),
        )

    def propose(
        self, module: Any, carry: FallbackCarry, context: RoundContext
    ) -> tuple[Proposal, FallbackCarry]:
        first, first_carry = self.first.propose(module[0], carry.first, context)
        if first.log_q is not None:
            raise TypeError(
                f"Fallback.first is {type(self.first).__name__}, which draws; expected a point mass"
            )
        used_first = first.live > 0
        without = dataclasses.replace(context, max_live=jnp.where(used_first, 0, context.max_live))
        second, second_carry = propose_if_wanted(self.second, module[1], carry.second, without)

        def of_either(first: jax.Array, second: jax.Array) -> jax.Array:
            return jnp.where(used_first.reshape(-1, *(1,) * (first.ndim - 1)), first, second)

        if second.log_q is not None:
            first = dataclasses.replace(first, log_q=_certain(first.tokens, second.log_q))
        proposal = jax.tree.map(of_either, first, second)
        return proposal, FallbackCarry(first_carry, second_carry, used_first)

    def commit(
        self, module: Any, carry: FallbackCarry, proposal: Proposal, outcome: Outcome
    ) -> FallbackCarry:
        of_first, of_second = self._split(outcome.features)

        def seen_by(proposed: jax.Array, features: Features) -> tuple[Proposal, Outcome]:
            """Of what a draft did not propose itself, nothing was accepted."""
            return (
                dataclasses.replace(proposal, failed=proposal.failed & proposed),
                dataclasses.replace(
                    outcome, accepted=jnp.where(proposed, outcome.accepted, 0), features=features
                ),
            )

        return dataclasses.replace(
            carry,
            first=self.first.commit(module[0], carry.first, *seen_by(carry.used_first, of_first)),
            second=self.second.commit(module[1], carry.second, *seen_by(~carry.used_first, of_second)),
        )

    def cached_length(self, carry: FallbackCarry) -> jax.Array | None:
        lengths = [self.first.cached_length(carry.first), self.second.cached_length(carry.second)]
        known = [length for length in lengths if length is not None]
        return jnp.max(jnp.stack(known), axis=0) if known else None

    def _split(self, features: Features) -> tuple[Features, Features]:
        count = len(self.first.taps)
        return features[:count], features[count:]


def _certain(tokens: jax.Array, like: jax.Array) -> jax.Array:
    """Log-laws float[B, gamma, V] that are certain of tokens int32[B, gamma]."""
    return jnp.where(jnp.arange(like.shape[-1]) == tokens[..., None], 0.0, -jnp.inf).astype(like.dtype)
