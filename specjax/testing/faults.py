"""Drafts that go wrong on purpose: text and law must not depend on what a draft proposes.

Beside the two kinds here, `drafts.Model(target)` is a draft that is never wrong, and a `Model` of
`TableLM(-table)` one that nearly always is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.drafts import Proposal, RoundContext, draw_tokens
from specjax.drafts.base import Stateless
from specjax.drafts.protocol import Carry


class Arrays(nnx.Module):
    """Named arrays in the place of a draft's model: traced, so that one program serves all their values."""

    def __init__(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            setattr(self, name, nnx.Variable(jnp.asarray(array)))


@dataclasses.dataclass(frozen=True)
class _Prepared(Stateless):
    """A draft whose proposals follow from given arrays."""

    arrays: Arrays | None = dataclasses.field(compare=False)

    @property
    def module(self) -> Arrays | None:
        return self.arrays

    def without_module(self) -> Any:
        return type(self)(None)


class Oracle(_Prepared):
    """Knows the text of each row, and errs at one slot of a round: any pattern of acceptance can be forced.

    Where the text is the target's greedy text, a round of a row emits `wrong_at` accepted tokens and a
    replacement; with `wrong_at` = gamma nothing is wrong, and it emits gamma accepted tokens and a bonus
    token. Slots behind the wrong one go on with the known text. The proposal is a point mass.

    Sampled rows must not be told a text that was sampled with their own seed: the noise that drew it also
    decides on the proposal, and the law is lost.
    """

    @classmethod
    def of(cls, texts: Any, prompt_lengths: Any, wrong_at: Any, *, wrong_token: Any = None) -> Oracle:
        """The draft for one batch.

        Args:
            texts: int[B, N], what each row is expected to generate; zeros follow.
            prompt_lengths: int[B], at which the texts begin.
            wrong_at: int[B], the slot that is wrong; none is where it is not in 0..gamma - 1.
            wrong_token: int or int[B], the id proposed there, which may be none of the vocabulary's. By
                default the right one plus one, modulo V.
        """
        arrays = {"texts": texts, "prompt_lengths": prompt_lengths, "wrong_at": wrong_at}
        if wrong_token is not None:
            arrays["wrong_token"] = jnp.broadcast_to(jnp.asarray(wrong_token), jnp.shape(wrong_at))
        return cls(Arrays(**{name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}))

    def propose(self, module: Any, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        texts = jnp.pad(module.texts[...], ((0, 0), (0, context.gamma)))
        slots = jnp.arange(context.gamma, dtype=jnp.int32)
        places = (context.length - module.prompt_lengths[...])[:, None] + slots
        right = jnp.take_along_axis(texts, jnp.minimum(places, texts.shape[1] - 1), axis=1)
        wrong = (right + 1) % context.vocab_size
        if hasattr(module, "wrong_token"):
            wrong = module.wrong_token[...][:, None]
        tokens = jnp.where(slots == module.wrong_at[...][:, None], wrong, right)
        failed = jnp.zeros(context.length.shape, jnp.bool_)
        return Proposal(tokens, context.max_live, log_q=None, failed=failed), carry


class FromLogits(_Prepared):
    """Draws every token from logits that are given, whatever the text, with the row's own sampling settings.

    Zeros propose uniformly; zero for one token and -inf for the others is a point mass that comes with its
    law; NaN from some slot on is a draft model that breaks down there: the slots before it stay live.
    """

    @classmethod
    def of(cls, logits: Any) -> FromLogits:
        """The draft whose logits broadcast to float[B, gamma, V]."""
        return cls(Arrays(logits=jnp.asarray(logits, jnp.float32)))

    def propose(self, module: Any, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        batch, gamma = context.length.shape[0], context.gamma
        logits = jnp.broadcast_to(module.logits[...], (batch, gamma, context.vocab_size))

        def predict(state: Any, tokens: jax.Array, slot: jax.Array) -> tuple[jax.Array, Any]:
            return jax.lax.dynamic_index_in_dim(logits, slot, axis=1, keepdims=False), state

        return draw_tokens(predict, (), context)[0], carry
