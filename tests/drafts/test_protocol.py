"""What the decoder hands to a draft: the target's states, all of them, once each."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafts import Ngram
from specjax.testing import LayeredTableLM, TableLM

VOCAB, BATCH, WIDTH, NEW, GAMMA = 5, 3, 7, 20, 4
TABLES = np.random.default_rng(0).normal(size=(2, VOCAB, VOCAB, VOCAB)).astype(np.float32) * 2
TARGET = LayeredTableLM(TABLES)
PROMPTS = np.random.default_rng(1).integers(0, VOCAB, (BATCH, WIDTH)).astype(np.int32)
LENGTHS = np.array([7, 1, 4], np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heard:
    """What was handed over at each position, and how often."""

    states: jax.Array
    following: jax.Array
    times: jax.Array


@dataclasses.dataclass(frozen=True)
class Listener(Ngram):
    """Proposes as an n-gram draft does, and writes down what the target thought."""

    @property
    def taps(self):
        return 1, 2

    def init(self, module, batch, capacity, vocab_size):
        nothing = jnp.zeros((batch, capacity), jnp.int32)
        return Heard(jnp.zeros((batch, capacity, 2, vocab_size)), nothing, nothing)

    def absorb(self, module, carry, features, next_tokens, start, count):
        rows, steps = np.arange(BATCH)[:, None], jnp.arange(next_tokens.shape[1])
        places = jnp.where(steps < count[:, None], start[:, None] + steps, carry.times.shape[1])
        return Heard(
            carry.states.at[rows, places].set(jnp.stack(features, axis=2), mode="drop"),
            carry.following.at[rows, places].set(next_tokens, mode="drop"),
            carry.times.at[rows, places].add(1, mode="drop"),
        )

    def commit(self, module, carry, proposal, outcome):
        block = outcome.features, outcome.emitted, outcome.start, outcome.count
        return self.absorb(module, carry, *block)


def test_a_draft_hears_what_the_target_thought_of_every_token_but_the_last():
    """In prompts and rounds, of two widths, and in a conversation that goes on."""
    config = specjax.DecodeConfig(
        max_new_tokens=NEW, gamma=GAMMA, verify_widths=(2,), capacity=WIDTH + 2 * NEW + 2, prefill_chunk=3
    )
    decoder = specjax.Decoder(TARGET, Listener(), config)
    state = decoder.run_rounds(decoder.start(PROMPTS, LENGTHS))
    state = decoder.run_rounds(decoder.extend(state, np.ones((BATCH, 2), np.int32), [2, 0, 1]))
    assert np.sum(state.stats.accepted) > 0
    heard, text = state.draft, np.asarray(state.tokens)
    positions = np.arange(heard.times.shape[1])
    real = positions < np.asarray(state.length)[:, None] - 1
    np.testing.assert_array_equal(heard.times, real)
    real, text = real[:, : text.shape[1]], np.asarray(text)
    np.testing.assert_array_equal(
        np.asarray(heard.following)[:, : text.shape[1]][real], np.roll(text, -1, axis=1)[real]
    )
    previous = np.pad(text, ((0, 0), (1, 0)))[:, :-1]
    expected = np.stack([TABLES[0][previous, text], np.sum(TABLES, axis=0)[previous, text]], axis=2)
    states = np.asarray(heard.states)[:, : text.shape[1]]
    np.testing.assert_allclose(states[real], expected[real], rtol=1e-6)


def test_a_target_without_layers_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Listener needs a target whose layers .* TableLM does not say"):
        specjax.Decoder(TableLM.random(VOCAB, seed=0), Listener())
    with pytest.raises(ValueError, match=r"Listener.taps is \(1, 2\); expected indices below 2 for Layered"):
        specjax.Decoder(LayeredTableLM(TABLES[:1]), Listener())
