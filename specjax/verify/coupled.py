"""Coupled sampling: the text does not depend on the draft (Daliri et al., arXiv 2408.07978)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.drafts import Proposal
from specjax.sampling import Noise, likeliest


def verify_coupled(log_p: jax.Array, proposal: Proposal, noise: Noise) -> tuple[jax.Array, jax.Array]:
    """Draws the target's own token at every position and accepts the draft as far as it agrees.

    Position t has Gumbel noise G_t of its own, keyed by seed and absolute position, from which draft and
    target both draw: x_t = argmax(log q_t + G_t), y_t = argmax(log p_t + G_t). What is emitted is always y:
    a function of target, prompt and seed alone. The draft only decides how many of them a round emits: both
    draw the same token with probability sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x)), at least
    (1 - TV) / (1 + TV).

    Args:
        log_p: float[T, V]. proposal, noise: of one row; its `log_q` is not read.

    Returns:
        n_accepted int32[], next_token int32[].
    """
    width, vocab_size = log_p.shape
    positions = jnp.arange(width, dtype=jnp.int32)
    gumbel = jax.vmap(lambda offset: noise.position_gumbel(offset, vocab_size, log_p.dtype))(positions)
    own = likeliest(log_p + gumbel)
    agrees = (proposal.tokens == own[:-1]) & (positions[:-1] < proposal.live)
    n_accepted = jnp.sum(jnp.cumprod(agrees, dtype=jnp.int32), dtype=jnp.int32)
    return n_accepted, own[n_accepted]
