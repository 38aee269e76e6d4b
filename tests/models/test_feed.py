"""Who listens to a model while it is fed hears of every position once."""

import jax.numpy as jnp
import numpy as np

from specjax.models.feed import feed_tapped
from specjax.testing import LayeredTableLM

VOCAB, WIDTH = 5, 11
TABLES = np.random.default_rng(0).normal(size=(2, VOCAB, VOCAB, VOCAB)).astype(np.float32)
TEXT = np.random.default_rng(1).integers(0, VOCAB, (3, WIDTH)).astype(np.int32)


def test_states_and_following_tokens_chunk_by_chunk():
    model = LayeredTableLM(TABLES)
    start, stop = np.array([0, 0, 2]), np.array([WIDTH - 1, 4, 2])
    fed = np.where(np.arange(WIDTH) < start[:, None], TEXT, 0)  # what the cache holds already

    def absorb(heard, features, next_tokens, start, count):
        rows, steps = np.arange(3)[:, None], jnp.arange(next_tokens.shape[1])
        places = jnp.where(steps < count[:, None], start[:, None] + steps, WIDTH)
        states, following, times = heard
        return (
            states.at[rows, places].set(features[0], mode="drop"),
            following.at[rows, places].set(next_tokens, mode="drop"),
            times.at[rows, places].add(1, mode="drop"),
        )

    cache, (states, following, times) = feed_tapped(
        model,
        jnp.asarray(np.pad(fed, ((0, 0), (0, 4)))),
        jnp.asarray(TEXT),
        start=jnp.asarray(start, jnp.int32),
        stop=jnp.asarray(stop, jnp.int32),
        chunk=4,
        taps=(1,),
        absorb=absorb,
        state=(jnp.zeros((3, WIDTH, VOCAB)), jnp.zeros((3, WIDTH), int), jnp.zeros((3, WIDTH), int)),
    )
    positions = np.arange(WIDTH)
    expected = (positions >= start[:, None]) & (positions < stop[:, None])
    np.testing.assert_array_equal(times, expected)
    previous = np.pad(TEXT, ((0, 0), (1, 0)))[:, :-1]
    np.testing.assert_array_equal(np.asarray(states)[expected], TABLES[0][previous, TEXT][expected])
    np.testing.assert_array_equal(
        np.asarray(following)[:, :-1][expected[:, :-1]], TEXT[:, 1:][expected[:, :-1]]
    )
    np.testing.assert_array_equal(np.asarray(cache)[:, :WIDTH][expected], TEXT[expected])
