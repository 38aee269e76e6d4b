"""Block verification (Sun et al., arXiv 2403.10444)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.drafts import Proposal
from specjax.sampling import Noise, likeliest
from specjax.verify.token import log_residual, token_log_ratios, verify_token


def verify_block(log_p: jax.Array, proposal: Proposal, noise: Noise) -> tuple[jax.Array, jax.Array]:
    """Accepts the longest draft prefix that passes; never fewer tokens on average than the token rule.

    With n live tokens x_1..x_n, r_0 = 1 and

        r_i = min(1, r_{i-1} p_i(x_i) / q_i(x_i))
        Z_i = sum_x (r_i p_{i+1}(x) - q_{i+1}(x))+
        h_i = Z_i / (Z_i + 1 - r_i)  for i < n,   h_n = r_n

    prefix i passes with probability h_i, each on its own; the longest one that passes is accepted, whatever
    became of the shorter ones. The next token comes from norm((r_i p_{i+1} - q_{i+1})+), after full
    acceptance from p_{n+1}. Decoding then simply goes on: the emitted tokens have exactly the law p.

    For a point mass this is the token rule, which costs less and is used instead. Where the target's law is
    not a number, nothing can be drawn: it counts as an end that the draft never proposes, so what is emitted
    before it has the law that plain decoding gives it.

    Args:
        log_p: float[T, V]. proposal, noise: of one row.

    Returns:
        n_accepted int32[], next_token int32[].
    """
    width, vocab_size = log_p.shape
    gamma = width - 1
    if proposal.log_q is None or gamma == 0:
        return verify_token(log_p, proposal, noise)
    broken = jnp.any(jnp.isnan(log_p), axis=-1)

    def accumulate(log_r: jax.Array, log_ratio: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_r = jnp.minimum(log_r + log_ratio, 0.0)
        return log_r, log_r

    start = jnp.zeros((), log_p.dtype)
    log_ratios = jnp.where(broken[:-1], -jnp.inf, token_log_ratios(log_p, proposal))
    log_r = jax.lax.scan(accumulate, start, log_ratios)[1]

    # The last live prefix is a leaf: nothing was drafted behind it.
    excess = jnp.exp(log_r[:-1, None] + log_p[1:-1]) - jnp.exp(proposal.log_q[1:])
    z = jnp.sum(jnp.maximum(excess, 0.0), axis=-1)
    shortfall = z - jnp.expm1(log_r[:-1])
    inner = jnp.where(shortfall > 0, jnp.log(z) - jnp.log(shortfall), 0.0)
    accepted = jnp.arange(1, width, dtype=jnp.int32)
    log_h = jnp.where((accepted == proposal.live) | broken[1:], log_r, jnp.append(inner, 0.0))
    passes = (noise.accept_log_uniform(gamma, log_p.dtype) <= log_h) & (accepted <= proposal.live)
    n_accepted = jnp.max(jnp.where(passes, accepted, 0))

    # With r = 1 before the first token.
    scale = jnp.where(n_accepted > 0, log_r[n_accepted - 1], 0.0)
    rejected = jnp.minimum(n_accepted, gamma - 1)
    log_next = log_p[n_accepted]
    residual = log_residual(log_next + scale, proposal.log_q[rejected], proposal.tokens[rejected])
    log_next = jnp.where(n_accepted < proposal.live, residual, log_next)
    gumbel = noise.replacement_gumbel(vocab_size, log_p.dtype)
    return n_accepted, likeliest(log_next + gumbel)
