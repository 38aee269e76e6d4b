"""The target with some of its layers left out, as draft of itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafts.base import Stateless, check_layers
from specjax.drafts.loop import draw_tokens
from specjax.drafts.protocol import Carry, Proposal, RoundContext


@dataclasses.dataclass(frozen=True)
class LayerSkip(Stateless):
    """Drafts with a subset of the target's own layers, and its own head.

    (Zhang et al., "Draft & Verify", arXiv 2309.08168. The first layers alone are an early exit: Elhoushi et
    al., "LayerSkip", arXiv 2404.16710.)

    It has no weights and no cache. The target's cache holds what all layers made of the committed text, and
    each layer that runs reads its own part of it. Slot i is predicted by scoring the last committed token and
    the whole draft before it anew, as a block of gamma tokens, and nothing is ever committed: the cache is
    the same before and after, whatever kind it is. The rows scored again cost little, as decoding waits for
    the weights, and each weight is still read once a slot.

    How well it guesses depends on the model: some were trained to be left early, most were not.

    Attributes:
        layers: indices of those that run, in order. Needs a target that says `num_layers`.
    """

    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        layers = self.layers
        valid = isinstance(layers, tuple) and all(type(index) is int and index >= 0 for index in layers)
        if not valid or not layers or len(set(layers)) < len(layers):
            raise ValueError(f"LayerSkip.layers is {layers!r}; expected a tuple of different layer indices")

    @classmethod
    def early_exit(cls, depth: int) -> LayerSkip:
        """The first `depth` layers."""
        return cls(tuple(range(depth)))

    def check_target(self, target: Any) -> None:
        check_layers(self, target, "layers", self.layers)

    def propose(self, module: None, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        target, before = context.target, (context.length - 1)[:, None]
        last = jnp.take_along_axis(context.tokens, before, axis=1)
        positions = before + jnp.arange(context.gamma, dtype=jnp.int32)

        def predict(state: Any, tokens: jax.Array, slot: jax.Array) -> tuple[jax.Array, Any]:
            block = jnp.concatenate([last, tokens[:, :-1]], axis=1)
            hidden, _, _ = target(block, positions, context.cache, layers=self.layers)
            return target.logits(jax.lax.dynamic_index_in_dim(hidden, slot, axis=1))[:, 0], state

        return draw_tokens(predict, (), context)[0], carry
