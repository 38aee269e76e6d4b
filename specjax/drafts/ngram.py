"""Prompt lookup: text that occurred before often continues as it did before."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.drafts.base import Stateless
from specjax.drafts.protocol import Carry, Proposal, RoundContext
from specjax.sampling.matches import match_lengths


@dataclasses.dataclass(frozen=True)
class Ngram(Stateless):
    """Finds the longest earlier occurrence of the last tokens and proposes what followed it.

    Among equally long matches the most recent wins. The search is a comparison of the last `max_match`
    tokens with every position of the text, on the device, without state. A match that ends near the end of
    the text is continued periodically, so that a repetition is proposed at full length. No weights, no cache:
    the proposal is a point mass. (Saxena, "Prompt Lookup Decoding", 2023.)

    The longer the match, the likelier the text goes on as it did. Where narrower verify widths make a short
    proposal cheaper (`DecodeConfig.verify_widths`), a match of n tokens proposes 2^(n-1), and as many
    more as are scored at the same cost.

    Attributes:
        max_match: tokens compared at most.
        min_match: shorter matches propose nothing.
    """

    max_match: int = 32
    min_match: int = 1

    def __post_init__(self) -> None:
        if self.min_match < 1 or self.max_match < self.min_match:
            raise ValueError(
                f"Ngram(max_match={self.max_match}, min_match={self.min_match}); "
                "expected 1 <= min_match <= max_match"
            )

    def propose(self, module: None, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        matched = match_lengths(context.tokens, context.length, self.max_match)
        width = matched.shape[1]
        positions = jnp.arange(width, dtype=jnp.int32)
        best = jnp.argmax(matched * width + positions, axis=1).astype(jnp.int32)
        longest = jnp.take_along_axis(matched, best[:, None], axis=1)[:, 0]

        period = jnp.maximum(context.length - 1 - best, 1)[:, None]
        slots = jnp.arange(context.gamma, dtype=jnp.int32)
        source = best[:, None] + 1 + slots % period
        # Text holds the caller's ids, which a traced call may have got wrong: such a row has ended already.
        tokens = jnp.take_along_axis(context.tokens, source, axis=1)
        live = jnp.where(longest >= self.min_match, context.max_live, 0)
        if len(context.widths) > 1:
            wanted = 1 << jnp.clip(longest - 1, 0, context.gamma.bit_length())
            widths = jnp.array(context.widths, jnp.int32)
            fitting = jnp.minimum(jnp.searchsorted(widths, wanted + 1), len(context.widths) - 1)
            live = jnp.minimum(live, widths[fitting] - 1)
        return Proposal(tokens=tokens, live=live, log_q=None, failed=jnp.zeros_like(live, bool)), carry
