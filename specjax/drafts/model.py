"""An independent, smaller model as draft (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.drafts.base import BaseDraft
from specjax.drafts.loop import draw_tokens, token_at
from specjax.drafts.protocol import Outcome, Proposal, RoundContext, no_proposal
from specjax.models.feed import feed
from specjax.models.vocabulary import check_compatible


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ModelCarry:
    """cache: the draft model's own. length: int32[B], committed tokens that it holds."""

    cache: Any
    length: jax.Array


@dataclasses.dataclass(frozen=True)
class Model(BaseDraft):
    """Drafts with another language model that shares the target's tokenizer.

    The draft has its own cache. A round begins by feeding what was committed since: one token, or two after
    full acceptance, because the last draft token was proposed but never fed. Rows that fell further behind
    catch up first, in chunks.

    Padded vocabularies may differ: ids that the draft lacks have q = 0, ids that the target lacks are never
    drafted. A row longer than the draft's context proposes nothing.

    Attributes:
        module: any model that conforms to `specjax.models.ScoringModel`.
    """

    module: nnx.Module | None = dataclasses.field(compare=False)

    def without_module(self) -> Model:
        return dataclasses.replace(self, module=None)

    def check_target(self, target: Any) -> None:
        check_compatible(target, self.module)

    def init(self, module: Any, batch: int, capacity: int, vocab_size: int) -> ModelCarry:
        if module is None:
            raise TypeError("Model.module is None; expected a Flax module")
        return ModelCarry(module.init_cache(batch, capacity), jnp.zeros(batch, jnp.int32))

    def prefill(
        self, module: Any, carry: ModelCarry, tokens: jax.Array, length: jax.Array, chunk: int
    ) -> ModelCarry:
        tokens = jnp.minimum(tokens, module.vocab_size - 1)
        cache = feed(module, carry.cache, tokens, start=carry.length, stop=length - 1, chunk=chunk)
        return ModelCarry(cache, jnp.maximum(carry.length, length - 1))

    def propose(self, module: Any, carry: ModelCarry, context: RoundContext) -> tuple[Proposal, ModelCarry]:
        if context.gamma == 0:
            return no_proposal(context.length.shape[0], 0), carry
        context = _within_context_of(module, context)
        text = jnp.minimum(context.tokens, module.vocab_size - 1)
        window = _window(module, context.gamma)
        target_length = jnp.where(context.running, context.length, carry.length)

        # Close all but the last `window` tokens of the lag; normally there are none.
        start = jnp.maximum(target_length - window, carry.length)
        cache = feed(module, carry.cache, text, start=carry.length, stop=start, chunk=context.chunk)

        # Feed the rest of the lag; its last token predicts slot 0.
        lag = target_length - start
        positions = start[:, None] + jnp.arange(window, dtype=jnp.int32)
        block = jnp.take_along_axis(text, jnp.minimum(positions, text.shape[1] - 1), axis=1)
        hidden, _, pending = module(block, positions, cache)
        hidden = jnp.take_along_axis(hidden, jnp.maximum(lag - 1, 0)[:, None, None], axis=1)

        def predict(cache: Any, tokens: jax.Array, slot: jax.Array) -> tuple[jax.Array, Any]:
            token = jnp.minimum(token_at(tokens, slot - 1), module.vocab_size - 1)
            position = context.length + slot - 1
            hidden, _, pending = module(token[:, None], position[:, None], cache)
            cache = module.commit(cache, pending, position, jnp.ones_like(position))
            return module.logits(hidden)[:, 0], cache

        fed = module.commit(cache, pending, start, lag)
        proposal, scratch = draw_tokens(predict, fed, context, first=module.logits(hidden)[:, 0])
        # After a failure the window is fed again, in case it was the window that left NaN in the cache.
        kept = jnp.where(proposal.failed, 0, lag)
        # A positional cache also keeps the drafted tokens, to be used where they are accepted; what is not
        # counted is overwritten. Any other holds the committed text alone.
        cache = scratch if _positional(module) else module.commit(cache, pending, start, kept)
        return proposal, ModelCarry(cache, start + kept)

    def commit(self, module: Any, carry: ModelCarry, proposal: Proposal, outcome: Outcome) -> ModelCarry:
        length = carry.length
        if _positional(module):
            # The last draft token was never fed.
            fed = jnp.minimum(outcome.accepted, jnp.maximum(proposal.live - 1, 0))
            length += jnp.where(proposal.failed, 0, fed)
        # A row that has just ended, perhaps with an error, may not need all that was fed.
        return dataclasses.replace(carry, length=jnp.minimum(length, outcome.length - 1))

    def cached_length(self, carry: ModelCarry) -> jax.Array:
        return carry.length


def _positional(module: Any) -> bool:
    """Whether the model's cache can be rolled back by a length alone."""
    return getattr(module, "positional_cache", False)


def _within_context_of(module: Any, context: RoundContext) -> RoundContext:
    """The context in which no slot lies beyond the draft's own: slot i needs position length - 1 + i."""
    limit = getattr(module, "context_length", None)
    if limit is None:
        return context
    max_live = jnp.clip(limit - context.length + 1, 0, context.max_live)
    return dataclasses.replace(context, max_live=max_live)


def _window(module: Any, gamma: int) -> int:
    """The longest lag of a row that took part in the last round.

    A positional cache keeps the accepted draft tokens, so only the last of them and the token after it are
    missing. Any other cache has to take in everything that was committed.
    """
    return 2 if _positional(module) else gamma + 1
