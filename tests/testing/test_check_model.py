"""`check_model` passes what conforms and names what does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from specjax.models.config import ModelConfig
from specjax.models.transformer import Transformer
from specjax.testing.check_model import ModelContractError, check_model
from specjax.testing.table_lm import LayeredTableLM

CONFIG = ModelConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    tie_embeddings=True,
)
CHECK = {"length": 12}


class Recurrence(nnx.Module):
    """A tiny leaky recurrence; `pending` holds the state after each token, commit picks one."""

    def __init__(self):
        self.vocab_size = 13
        keys = jax.random.split(jax.random.key(0), 2)
        self.embedding = nnx.Param(jax.random.normal(keys[0], (13, 8)))
        self.head = nnx.Param(jax.random.normal(keys[1], (8, 13)))

    def init_cache(self, batch, capacity):
        return jnp.zeros((batch, 8))

    def __call__(self, tokens, positions, cache, *, taps=()):
        if taps:
            raise NotImplementedError("taps")
        inputs = self.embedding[...][jnp.clip(tokens, 0, 12)]

        def step(state, x):
            state = jnp.tanh(0.7 * state + x)
            return state, state

        _, states = jax.lax.scan(step, cache, inputs.swapaxes(0, 1))
        hidden = states.swapaxes(0, 1)
        return hidden, (), jnp.concatenate([cache[:, None], hidden], axis=1)

    def commit(self, cache, pending, lengths, count):
        return jnp.take_along_axis(pending, count[:, None, None], axis=1)[:, 0]

    def logits(self, hidden):
        return hidden @ self.head[...]


class ForgetsToRollBack(Recurrence):
    def commit(self, cache, pending, lengths, count):
        return pending[:, -1]


class DropsTheLastToken(Recurrence):
    def commit(self, cache, pending, lengths, count):
        return super().commit(cache, pending, lengths, jnp.maximum(count - 1, 0))


class RollsBackByTheFirstRow(Recurrence):
    def commit(self, cache, pending, lengths, count):
        return super().commit(cache, pending, lengths, jnp.full_like(count, count[0]))


class IndexesOutOfRange(Recurrence):
    def __call__(self, tokens, positions, cache, *, taps=()):
        hidden, tapped, pending = super().__call__(tokens, positions, cache, taps=taps)
        return jnp.where((tokens < 13)[..., None], hidden, jnp.nan), tapped, pending


class SeesTheFuture(Recurrence):
    def __call__(self, tokens, positions, cache, *, taps=()):
        hidden, tapped, pending = super().__call__(tokens, positions, cache, taps=taps)
        return hidden + 0.01 * hidden[:, -1:], tapped, pending


class IgnoresPositions(Transformer):
    def __call__(self, tokens, positions, cache, **settings):
        return super().__call__(tokens, jnp.broadcast_to(positions[:1], positions.shape), cache, **settings)


class MixesRows(Recurrence):
    """Adds the mean over rows of the new states, as a batch norm would."""

    def logits(self, hidden):
        return super().logits(hidden) + 0.1 * super().logits(hidden).mean(axis=0, keepdims=True)


class CountsCapacity(Recurrence):
    def init_cache(self, batch, capacity):
        return jnp.zeros((batch, 8)) + 0.01 * capacity


class ClaimsPositions(Recurrence):
    positional_cache = True


class HalfLogits(Recurrence):
    def logits(self, hidden):
        return super().logits(hidden).astype(jnp.bfloat16)


class NarrowLogits(Recurrence):
    def logits(self, hidden):
        return super().logits(hidden)[..., 1:]


class GrowsItsCache(Recurrence):
    def commit(self, cache, pending, lengths, count):
        return pending


class NoTaps(Recurrence):
    def __call__(self, tokens, positions, cache):
        return super().__call__(tokens, positions, cache)


class SaysLayers(Recurrence):
    num_layers = 2


class TapsNothing(Recurrence):
    num_layers = 2

    def __call__(self, tokens, positions, cache, *, taps=(), layers=None):
        return super().__call__(tokens, positions, cache)


class ReturnsLogitsOnly(Recurrence):
    def __call__(self, tokens, positions, cache, *, taps=()):
        return super().__call__(tokens, positions, cache, taps=taps)[0]


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_transformer_conforms(dtype):
    check_model(Transformer(CONFIG, dtype=dtype, rngs=nnx.Rngs(0)), **CHECK)


@pytest.mark.parametrize(
    "make", [Recurrence, lambda: LayeredTableLM(jax.random.normal(jax.random.key(0), (2, 5, 5, 5)))]
)
def test_other_caches_conform(make):
    check_model(make(), batch=3, **CHECK)


@pytest.mark.parametrize(
    "model, method, seen",
    [
        (ForgetsToRollBack, "commit", "difference"),
        (DropsTheLastToken, "__call__ or commit", "difference"),
        (RollsBackByTheFirstRow, "commit", "difference"),
        (IndexesOutOfRange, "__call__", "NaN"),
        (SeesTheFuture, "__call__", "difference"),
        (MixesRows, "__call__", "difference"),
        (CountsCapacity, "init_cache", "difference"),
        (ClaimsPositions, "positional_cache", "difference"),
        (HalfLogits, "logits", "bfloat16"),
        (NarrowLogits, "logits", "12"),
        (GrowsItsCache, "commit", "float32"),
        (NoTaps, "__call__", "TypeError"),
        (SaysLayers, "__call__", "unexpected keyword argument 'layers'"),
        (TapsNothing, "__call__", "(ShapeDtypeStruct(shape=(2, 4, 8)"),
        (ReturnsLogitsOnly, "__call__", "PyTreeDef"),
    ],
)
def test_breach_is_named(model, method, seen):
    with pytest.raises(ModelContractError) as caught:
        check_model(model(), **CHECK)
    assert caught.value.method == method
    assert seen in caught.value.seen
    assert str(caught.value).startswith(f"{method}: expected ")


def test_shared_offset_is_caught():
    with pytest.raises(ModelContractError, match="commit"):
        check_model(IgnoresPositions(CONFIG, rngs=nnx.Rngs(0)), **CHECK)


def test_vocab_size_is_required():
    model = Recurrence()
    model.vocab_size = None
    with pytest.raises(ModelContractError, match="vocab_size"):
        check_model(model)


@pytest.mark.parametrize("arguments", [{"batch": 1}, {"length": 7}])
def test_too_little_to_check(arguments):
    with pytest.raises(ValueError, match="at least"):
        check_model(Recurrence(), **arguments)
