"""Drawing draft tokens one after another: the loop that all drafts with logits share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafts.protocol import Proposal, RoundContext, no_proposal
from specjax.models.layers import compute_dtype

# `(state, tokens int32[B, gamma], slot int32[]) -> (logits float[B, V'], state)`: the draft's raw logits of
# `slot`, after the tokens in the slots before it.
Predict = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Drawn:
    """What the loop carries.

    Attributes:
        slot: int32[], the next one. end: int32[], where the loop ends: no row can want a slot from there on.
        tokens, live, laws, failed: of the proposal, as far as it has come.
        processors: the processors' states after the tokens before the last one drawn.
        state: the draft's own.
    """

    slot: jax.Array
    end: jax.Array
    tokens: jax.Array
    live: jax.Array
    laws: jax.Array
    failed: jax.Array
    processors: Any
    state: Any


def draw_tokens(
    predict: Predict, state: Any, context: RoundContext, *, first: jax.Array | None = None
) -> tuple[Proposal, Any]:
    """Draws up to gamma tokens; ends, on the device, as soon as no row wants another one.

    A row has had enough where `context.max_live` says so, or the policy, which sees the law at a slot and
    never the token drawn there. Where logits are not finite the row has failed. Either way the tokens before
    stay proposed.

    Args:
        predict: gives the logits of a slot.
        state: what `predict` carries from slot to slot, such as a cache.
        first: float[B, V'], the logits of slot 0, if they are known; `predict` is then not asked for them.

    Returns:
        The proposal and the draft's state.
    """
    batch, gamma = context.length.shape[0], context.gamma
    nothing = no_proposal(batch, gamma)
    if gamma == 0:
        return nothing, state

    def draw(drawn: _Drawn, logits: jax.Array, processors: Any, state: Any) -> _Drawn:
        """Adds one token, drawn from `logits`."""
        slot = drawn.slot
        token = context.draw(processors, _to_target_vocabulary(logits, context.vocab_size), slot)
        wanted = (drawn.live == slot) & (slot < context.max_live)
        sure = context.policy.continues(context.policy_state, token.belief, slot)
        live = drawn.live + (wanted & token.drawable & sure).astype(jnp.int32)
        goes_on = jnp.any((live > slot) & (live < context.max_live))
        return _Drawn(
            slot=slot + 1,
            end=jnp.where(goes_on, drawn.end, 0),
            tokens=_set(drawn.tokens, slot, token.tokens),
            live=live,
            laws=_set(drawn.laws, slot, token.log_law),
            failed=drawn.failed | (wanted & ~token.drawable),
            processors=processors,
            state=state,
        )

    def step(drawn: _Drawn) -> _Drawn:
        logits, state = predict(drawn.state, drawn.tokens, drawn.slot)
        last = token_at(drawn.tokens, drawn.slot - 1)
        after_first = jnp.broadcast_to(drawn.slot > 0, (batch,))
        return draw(drawn, logits, context.pipeline.advance(drawn.processors, last, after_first), state)

    like = jax.eval_shape(predict, state, nothing.tokens, jnp.int32(0))[0] if first is None else first
    drawn = _Drawn(
        slot=jnp.int32(0),
        end=jnp.max(context.max_live),
        tokens=nothing.tokens,
        live=nothing.live,
        laws=jnp.zeros((batch, gamma, context.vocab_size), compute_dtype(like.dtype)),
        failed=nothing.failed,
        processors=context.processor_states,
        state=state,
    )
    if first is not None:
        drawn = draw(drawn, first, drawn.processors, state)
    if first is None or gamma > 1:
        drawn = jax.lax.while_loop(lambda drawn: drawn.slot < drawn.end, step, drawn)
    return Proposal(drawn.tokens, drawn.live, drawn.laws, drawn.failed), drawn.state


def token_at(tokens: jax.Array, slot: jax.Array) -> jax.Array:
    """int32[B], the tokens of one slot."""
    return jax.lax.dynamic_index_in_dim(tokens, slot, axis=1, keepdims=False)


def _set(array: jax.Array, slot: jax.Array, values: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(array, values, slot, axis=1)


def _to_target_vocabulary(logits: jax.Array, vocab_size: int) -> jax.Array:
    """Logits over the target's ids: -inf where the draft has none, dropped where the target has none."""
    missing = max(vocab_size - logits.shape[-1], 0)
    return jnp.pad(logits[..., :vocab_size], ((0, 0), (0, missing)), constant_values=-jnp.inf)
