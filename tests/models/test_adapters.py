"""Modules that are not ours, adapted in a few lines: the contract asks no more than this."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from specjax.testing.check_model import check_model

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


def test_nnx_module_conforms():
    check_model(NnxGRU(nnx.Rngs(0)), length=12)


def test_linen_module_conforms():
    module, keys = LinenAttention(), jax.random.split(jax.random.key(0))
    ints = jnp.zeros((1, 1), jnp.int32)
    params = module.init(keys[0], ints, ints, jnp.zeros((1, 4, WIDTH)), jnp.ones((1, 1, 1, 4), bool))
    check_model(LinenAdapter(module, params, jax.random.normal(keys[1], (WIDTH, VOCAB))), length=12)
