"""Token recycling: what the target wanted after a token once, it may want again."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.drafts.base import Stateless
from specjax.drafts.protocol import Outcome, Proposal, RoundContext
from specjax.sampling import likeliest

_UNKNOWN = -1


@dataclasses.dataclass(frozen=True)
class Recycling(Stateless):
    """Follows, from token to token, what the target last found likeliest after each.

    (Luo et al., "Turning Trash into Treasure", arXiv 2408.08696.)

    Every scored position leaves a successor behind, those of rejected draft tokens too: what one round throws
    away the next ones may use. A prompt leaves its own pairs of tokens. No weights, no cache; the carry is a
    table int32[B, V] of successors, one for each row, as a row must not depend on its neighbours. The paper
    keeps several successors of a token and drafts trees; a chain needs the likeliest alone.

    A proposal ends where no successor is known. It is a point mass.
    """

    def init(self, module: None, batch: int, capacity: int, vocab_size: int) -> jax.Array:
        return jnp.full((batch, vocab_size), _UNKNOWN, jnp.int32)

    def prefill(
        self, module: None, carry: jax.Array, tokens: jax.Array, length: jax.Array, chunk: int
    ) -> jax.Array:
        steps = jnp.arange(chunk, dtype=jnp.int32)

        def learn(index: jax.Array, table: jax.Array) -> jax.Array:
            positions = jnp.broadcast_to(index * chunk + steps, (tokens.shape[0], chunk))
            first, second = (
                jnp.take_along_axis(tokens, jnp.minimum(positions + offset, tokens.shape[1] - 1), axis=1)
                for offset in (0, 1)
            )
            return _learn(table, first, second, positions < (length - 1)[:, None])

        pairs = jnp.maximum(jnp.max(length) - 1, 0)
        return jax.lax.fori_loop(0, (pairs + chunk - 1) // chunk, learn, carry)

    def propose(self, module: None, carry: jax.Array, context: RoundContext) -> tuple[Proposal, jax.Array]:
        def follow(token: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            successor = jnp.take_along_axis(carry, token[:, None], axis=1)[:, 0]
            # Nothing is known of what follows the unknown either.
            successor = jnp.where(token == _UNKNOWN, _UNKNOWN, successor)
            return successor, successor

        last = jnp.take_along_axis(context.tokens, (context.length - 1)[:, None], axis=1)[:, 0]
        tokens = jax.lax.scan(follow, last, length=context.gamma)[1].T
        known = jnp.sum(tokens != _UNKNOWN, axis=1, dtype=jnp.int32)
        live = jnp.minimum(known, context.max_live)
        return Proposal(tokens, live, log_q=None, failed=jnp.zeros_like(live, bool)), carry

    def commit(self, module: None, carry: jax.Array, proposal: Proposal, outcome: Outcome) -> jax.Array:
        successors = likeliest(outcome.logits)
        slots = jnp.arange(successors.shape[1], dtype=jnp.int32)
        scored = (slots <= outcome.live[:, None]) & (outcome.count > 0)[:, None]
        return _learn(carry, outcome.scored, successors, scored)


def _learn(table: jax.Array, tokens: jax.Array, successors: jax.Array, valid: jax.Array) -> jax.Array:
    """The table with `successors` int32[B, T] of `tokens` int32[B, T] where `valid`, the last of equals.

    The others are left out, because a scatter does not say in which order it writes to one place.
    """
    slots = jnp.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None, :]) & valid[:, None, :]
    is_last = valid & ~jnp.any(same & (slots[None, :] > slots[:, None]), axis=2)
    rows, nowhere = jnp.arange(tokens.shape[0])[:, None], table.shape[1]
    return table.at[rows, jnp.where(is_last, tokens, nowhere)].set(successors, mode="drop")
