"""A language model whose law can be written down: logits are a table over the last tokens."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class TableLM(nnx.Module):
    """Logits of the next token depend on the last two tokens through a table.

    The previous token is read back from a cache like a transformer's, one slot a position, so that a decoder
    which loses track of its cache changes the law. Conforms to `specjax.models.ScoringModel`.

    Attributes:
        table: float[V, V, V], logits of the next token after (previous, last). Before the first token,
            previous counts as token 0.
    """

    positional_cache = True

    def __init__(self, table: Any, *, eos_ids: tuple[int, ...] = ()) -> None:
        self.table = nnx.Param(jnp.asarray(table))
        self.vocab_size = self.table.shape[0]
        self.eos_ids = eos_ids

    @classmethod
    def random(cls, vocab_size: int, seed: int, *, scale: float = 1.5, dtype: Any = np.float32) -> TableLM:
        """A table of independent normal logits with standard deviation `scale`."""
        table = np.random.default_rng(seed).normal(size=(vocab_size,) * 3) * scale
        return cls(table.astype(dtype))

    def init_cache(self, batch: int, capacity: int) -> jax.Array:
        """int32[B, S]: the token at each position."""
        return jnp.zeros((batch, capacity), jnp.int32)

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: jax.Array, *, taps: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
        """The hidden state is the logits themselves: float[B, T, V]."""
        previous, pending = self._remember(tokens, positions, cache)
        return self.table[...][previous, tokens], (), pending

    def _remember(
        self, tokens: jax.Array, positions: jax.Array, cache: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The token before each of `tokens`, and the cache with the tokens in it."""
        write = jax.vmap(lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,)))
        pending = write(cache, tokens.astype(cache.dtype), positions[:, 0])
        previous = jnp.take_along_axis(pending, jnp.maximum(positions - 1, 0), axis=1)
        return jnp.where(positions > 0, previous, 0), pending

    def commit(self, cache: Any, pending: jax.Array, lengths: jax.Array, count: jax.Array) -> jax.Array:
        """Entries beyond a row's length are never read before they are written again."""
        return pending

    def logits(self, hidden: jax.Array) -> jax.Array:
        return hidden


class LayeredTableLM(TableLM):
    """A `TableLM` of layers that can be named: each adds its own table to the logits.

    The state that a layer is given, and that a tap returns, is the sum of the tables before it.

    Attributes:
        tables: float[L, V, V, V], of each layer. `table` is their sum.
    """

    def __init__(self, tables: Any, *, eos_ids: tuple[int, ...] = ()) -> None:
        super().__init__(jnp.sum(jnp.asarray(tables), axis=0), eos_ids=eos_ids)
        self.tables = nnx.Param(jnp.asarray(tables))
        self.num_layers = self.tables.shape[0]

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: jax.Array,
        *,
        taps: tuple[int, ...] = (),
        layers: tuple[int, ...] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
        previous, pending = self._remember(tokens, positions, cache)
        state, states = jnp.zeros((*tokens.shape, self.vocab_size), self.table.dtype), {}
        for index in range(self.num_layers) if layers is None else layers:
            states[index] = state
            state = state + self.tables[...][index, previous, tokens]
        states[self.num_layers] = state
        return state, tuple(states[tap] for tap in taps), pending


def sequence_law(log_probs: Any, prompt: tuple[int, ...], length: int) -> np.ndarray:
    """Probability of every continuation of `length` tokens, in lexicographic order.

    Args:
        log_probs: function of the text so far, a tuple of ids, giving float64[V] log-probabilities.

    Returns:
        float64[V ** length]
    """
    vocab_size = len(log_probs(prompt))
    law = np.empty(vocab_size**length)
    for index, continuation in enumerate(itertools.product(range(vocab_size), repeat=length)):
        total = 0.0
        for step, token in enumerate(continuation):
            total += float(log_probs(prompt + continuation[:step])[token])
        law[index] = np.exp(total)
    return law
