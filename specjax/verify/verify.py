"""Verifying a batch: greedy rows by comparison, sampled rows by the acceptance rule, side by side."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from specjax.drafts import Proposal
from specjax.sampling import Noise, likeliest
from specjax.verify.rule import Rule


def verify(
    rule: Rule, processed: jax.Array, log_p: jax.Array, greedy: jax.Array, proposal: Proposal, noise: Noise
) -> tuple[jax.Array, jax.Array]:
    """Decides for every row how much of its proposal becomes text, and which token follows.

    Args:
        rule: for sampled rows; not run when there are none.
        processed: float[B, T, V], processed logits of the target.
        log_p: float[B, T, V], their log-law; not read when every row is greedy.
        greedy: bool[B].
        proposal, noise: batched.

    Returns:
        n_accepted int32[B] in 0..live, next_token int32[B].
    """
    batch, width, _ = processed.shape
    chex.assert_shape(proposal.tokens, (batch, width - 1))
    compared = verify_greedy(processed, proposal)

    def mixed() -> tuple[jax.Array, jax.Array]:
        sampled = jax.vmap(rule.apply)(log_p, proposal, noise)
        return jax.tree.map(lambda kept, drawn: jnp.where(greedy, kept, drawn), compared, sampled)

    return jax.lax.cond(jnp.all(greedy), lambda: compared, mixed)


def verify_greedy(processed: jax.Array, proposal: Proposal) -> tuple[jax.Array, jax.Array]:
    """Keeps the draft tokens that equal the target's likeliest token, up to the first that does not.

    The next token is the likeliest one there. The lowest id wins a tie.

    Args:
        processed: float[B, T, V].

    Returns:
        n_accepted int32[B], next_token int32[B].
    """
    best = likeliest(processed)
    slots = jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32)
    matches = (proposal.tokens == best[:, :-1]) & (slots < proposal.live[:, None])
    n_accepted = jnp.sum(jnp.cumprod(matches, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32)
    return n_accepted, jnp.take_along_axis(best, n_accepted[:, None], axis=1)[:, 0]
