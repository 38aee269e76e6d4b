"""Token-level rejection sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from specjax.drafts import Proposal
from specjax.sampling import Noise, likeliest


def verify_token(log_p: jax.Array, proposal: Proposal, noise: Noise) -> tuple[jax.Array, jax.Array]:
    """Accepts draft token x with probability min(1, p(x) / q(x)), until the first rejection.

    After a rejection the next token comes from the residual norm((p - q)+), after full acceptance from p of
    the following position. Either way the emitted tokens have exactly the law p. A proposal without `log_q`
    is a point mass: x is accepted with probability p(x), and the residual is p without x.

    Everything stays in log space: no epsilon is added anywhere, and u in (0, 1] makes p = q always accept.

    Args:
        log_p: float[T, V]. proposal, noise: of one row.

    Returns:
        n_accepted int32[], next_token int32[].
    """
    width, vocab_size = log_p.shape
    gamma = width - 1
    chex.assert_shape(proposal.tokens, (gamma,))
    gumbel = noise.replacement_gumbel(vocab_size, log_p.dtype)
    if gamma == 0:
        return jnp.int32(0), likeliest(log_p[0] + gumbel)

    slots = jnp.arange(gamma, dtype=jnp.int32)
    log_ratios = token_log_ratios(log_p, proposal)
    accept = (noise.accept_log_uniform(gamma, log_p.dtype) <= log_ratios) & (slots < proposal.live)
    n_accepted = jnp.sum(jnp.cumprod(accept, dtype=jnp.int32), dtype=jnp.int32)

    rejected = jnp.minimum(n_accepted, gamma - 1)
    log_next = log_p[n_accepted]
    log_q = None if proposal.log_q is None else proposal.log_q[rejected]
    residual = log_residual(log_next, log_q, proposal.tokens[rejected])
    log_next = jnp.where(n_accepted < proposal.live, residual, log_next)
    return n_accepted, likeliest(log_next + gumbel)


def token_log_ratios(log_p: jax.Array, proposal: Proposal) -> jax.Array:
    """float[gamma]: log p(x) / q(x) of each draft token."""
    gamma, vocab_size = log_p.shape[0] - 1, log_p.shape[1]
    slots = jnp.arange(gamma, dtype=jnp.int32)
    log_ratios = log_p[slots, proposal.tokens]
    if proposal.log_q is not None:
        chex.assert_shape(proposal.log_q, (gamma, vocab_size))
        log_ratios -= proposal.log_q[slots, proposal.tokens]
    return log_ratios


def log_residual(log_p: jax.Array, log_q: jax.Array | None, token: jax.Array) -> jax.Array:
    """Log (p - q)+, not normalised; p itself where rounding has left nothing.

    A rejection has probability zero when p = q, but rounding can make it happen, and then p is the law.

    Args:
        log_p: float[V]. log_q: float[V], or None for a point mass at `token` int32[].

    Returns:
        float[V]
    """
    if log_q is None:
        residual = jnp.where(jnp.arange(log_p.shape[0]) == token, -jnp.inf, log_p)
    else:
        # log(e^a - e^b) = a + log(1 - e^(b - a)); b - a only where it is a number below 0.
        exceeds = log_p > log_q
        gap = jnp.where(exceeds & (log_q > -jnp.inf), log_q - log_p, -jnp.inf)
        residual = jnp.where(exceeds, log_p + jnp.log1p(-jnp.exp(gap)), -jnp.inf)
    return jnp.where(jnp.max(residual) == -jnp.inf, log_p, residual)
