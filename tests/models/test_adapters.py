"""Modules that are not ours, adapted in a few lines: they conform, and decode."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.testing import check_model

VOCAB, WIDTH = 17, 8


class NnxGRU(nnx.Module):
    """A language model around `nnx.GRUCell`: `pending` holds the state before and after each token."""

    def __init__(self, rngs):
        self.vocab_size = VOCAB
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.cell = nnx.GRUCell(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def init_cache(self, batch, capacity):
        return jnp.zeros((batch, WIDTH))

    def __call__(self, tokens, positions, cache, *, taps=()):
        if taps:
            raise NotImplementedError("no layers to tap")
        states = [cache]
        for inputs in jnp.unstack(self.embed(jnp.clip(tokens, 0, VOCAB - 1)), axis=1):
            states.append(self.cell(states[-1], inputs)[0])
        return jnp.stack(states[1:], axis=1), (), jnp.stack(states, axis=1)

    def commit(self, cache, pending, lengths, count):
        return jax.vmap(lambda states, n: states[n])(pending, count)

    def logits(self, hidden):
        return self.head(hidden)


class LinenAttention(nn.Module):
    """One attention layer as a linen model may have it: earlier tokens' inputs and the mask are arguments."""

    @nn.compact
    def __call__(self, tokens, positions, context, mask):
        x = nn.Embed(VOCAB, WIDTH)(tokens) + nn.Embed(64, WIDTH)(positions)
        context = jax.vmap(lambda c, x, p: jax.lax.dynamic_update_slice(c, x, (p, 0)))(
            context, x, positions[:, 0]
        )
        return x + nn.MultiHeadDotProductAttention(num_heads=2)(x, context, mask=mask), context


class LinenAdapter(nnx.Module):
    """Holds a linen module's parameters; the cache is what it attends to."""

    def __init__(self, module, params, head):
        self.module = module
        self.params = nnx.data(jax.tree.map(nnx.Param, params))
        self.head = nnx.Param(head)
        self.vocab_size = VOCAB

    def init_cache(self, batch, capacity):
        return jnp.zeros((batch, capacity, WIDTH))

    def __call__(self, tokens, positions, cache, *, taps=()):
        if taps:
            raise NotImplementedError("the module does not return its layers' inputs")
        mask = jnp.arange(cache.shape[1]) <= positions[:, None, :, None]
        params = jax.tree.map(lambda p: p[...], self.params, is_leaf=lambda p: isinstance(p, nnx.Param))
        hidden, pending = self.module.apply(params, jnp.clip(tokens, 0, VOCAB - 1), positions, cache, mask)
        return hidden, (), pending

    def commit(self, cache, pending, lengths, count):
        return pending

    def logits(self, hidden):
        return hidden @ self.head[...]


def nnx_gru():
    return NnxGRU(nnx.Rngs(0))


def linen_attention():
    module, keys = LinenAttention(), jax.random.split(jax.random.key(0))
    ints = jnp.zeros((1, 1), jnp.int32)
    params = module.init(keys[0], ints, ints, jnp.zeros((1, 4, WIDTH)), jnp.ones((1, 1, 1, 4), bool))
    return LinenAdapter(module, params, jax.random.normal(keys[1], (WIDTH, VOCAB)))


@pytest.mark.parametrize("make", [nnx_gru, linen_attention])
def test_adapted_module_conforms(make):
    check_model(make(), length=12)


@pytest.mark.parametrize("make", [nnx_gru, linen_attention])
def test_adapted_module_decodes_its_greedy_text(make):
    model, budget = make(), 16
    prompts = np.array([[3, 5, 3, 5, 3, 5], [1, 2, 9, 0, 0, 0]], np.int32)
    lengths = np.array([6, 3], np.int32)
    config = specjax.DecodeConfig(max_new_tokens=budget, gamma=3, prefill_chunk=4, debug=True)
    out = specjax.generate(model, prompts, lengths, draft=specjax.drafts.Ngram(), config=config)

    # Some drafts were kept and some were not: otherwise nothing was ever rolled back.
    assert 0 < np.sum(out.stats.accepted) < np.sum(out.stats.drafted)
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        np.testing.assert_array_equal(out.tokens[row], greedy_text(model, prompt[:length], budget))


def greedy_text(model, prompt, budget):
    """The likeliest token each time, from a pass over the whole text so far."""
    text, total = np.zeros((1, len(prompt) + budget), np.int32), len(prompt) + budget
    text[0, : len(prompt)] = prompt
    positions = np.arange(total, dtype=np.int32)[None]
    logits = nnx.jit(lambda model, text: model.logits(model(text, positions, model.init_cache(1, total))[0]))
    for end in range(len(prompt), total):
        text[0, end] = logits(model, text)[0, end - 1].argmax()
    return text[0, len(prompt) :]
