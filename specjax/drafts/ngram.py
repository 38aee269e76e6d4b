"""Prompt lookup: text that occurred before often continues as it did before."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.drafts.protocol import Carry, Proposal, RoundContext
from specjax.drafts.stateless import Stateless


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

    def slots(self, gamma: int) -> int:
        return gamma

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


def match_lengths(tokens: jax.Array, length: jax.Array, longest: int) -> jax.Array:
    """How many tokens up to each position agree with the last tokens of the text.

    For text `a b c a b` (length 5): `[0, 2, 0, 0, -]`: the text up to position 1 ends with `a b`, as the
    whole does. The last position itself is no match.

    Args:
        tokens: int32[B, N]. length: int32[B], at least 1. longest: compare at most this many.

    Returns:
        int32[B, N]
    """
    width = tokens.shape[1]
    positions = jnp.arange(width, dtype=jnp.int32)
    longest = min(longest, width)
    padded = jnp.pad(tokens, ((0, 0), (longest, 0)), constant_values=-1)

    def compare(back: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """One token further back, at all positions at once."""
        agrees, matched = carry
        last = jnp.take_along_axis(tokens, jnp.maximum(length - 1 - back, 0)[:, None], axis=1)
        earlier = jax.lax.dynamic_slice_in_dim(padded, longest - back, width, axis=1)
        agrees &= (earlier == last) & (length > back)[:, None]
        return agrees, matched + agrees

    before_last = jnp.broadcast_to(positions < length[:, None] - 1, tokens.shape)
    return jax.lax.fori_loop(0, longest, compare, (before_last, jnp.zeros(tokens.shape, jnp.int32)))[1]
