"""A model that counts, and a draft that replays a script: tests decide which token plays which part."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.drafts import Proposal
from specjax.drafts.stateless import Stateless
from specjax.testing.table_lm import TableLM


def counting_table(vocab_size, *, margin=8.0, noise=0.5, seed=0):
    """Logits of a `TableLM` whose greedy text counts upwards from the prompt's last token."""
    table = np.random.default_rng(seed).normal(size=(vocab_size,) * 3) * noise
    last = np.arange(vocab_size)
    table[:, last, (last + 1) % vocab_size] += margin
    return table.astype(np.float32)


def counting_model(vocab_size, **kwargs):
    return TableLM(counting_table(vocab_size, **kwargs))


class Script(nnx.Module):
    """Arrays of a `Scripted` draft: they are traced, so that one program runs every script."""

    def __init__(self, texts, prompt_lengths, wrong_at):
        self.texts = nnx.Variable(jnp.asarray(texts, jnp.int32))
        self.prompt_lengths = nnx.Variable(jnp.asarray(prompt_lengths, jnp.int32))
        self.wrong_at = nnx.Variable(jnp.asarray(wrong_at, jnp.int32))


@dataclasses.dataclass(frozen=True)
class Scripted(Stateless):
    """Proposes each row's text int[B, N] from where the row is, with a wrong token at one slot of a round.

    A round of a greedy row emits `wrong_at` accepted tokens and a replacement; with `wrong_at` = gamma, that
    is with no wrong token, gamma accepted tokens and a bonus token.
    """

    script: Script | None = dataclasses.field(compare=False)

    @classmethod
    def of(cls, texts, prompt_lengths, wrong_at):
        return cls(Script(texts, prompt_lengths, wrong_at))

    @property
    def module(self):
        return self.script

    def without_module(self):
        return Scripted(None)

    def slots(self, gamma):
        return gamma

    def propose(self, module, carry, context):
        texts = jnp.pad(module.texts[...], ((0, 0), (0, context.gamma)))
        slots = jnp.arange(context.gamma, dtype=jnp.int32)
        places = (context.length - module.prompt_lengths[...])[:, None] + slots
        right = jnp.take_along_axis(texts, jnp.minimum(places, texts.shape[1] - 1), axis=1)
        wrong = slots == module.wrong_at[...][:, None]
        tokens = jnp.where(wrong, (right + 1) % context.vocab_size, right)
        return Proposal(tokens, context.max_live, None, jnp.zeros(len(texts), jnp.bool_)), carry
