"""Rollback: whatever a round rejects, both caches hold what a fresh pass over the text holds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model
from specjax.models.transformer import Transformer
from tests.tiny_llama import CONFIG

GAMMA, NEW, BATCH, WIDTH, PERIOD = 3, 30, 4, 7, 7
TARGET = Transformer(CONFIG, rngs=nnx.Rngs(0))
# Rows begin at different places of a cycle.
PROMPTS = np.random.default_rng(0).integers(0, 64, (BATCH, WIDTH)).astype(np.int32)
LENGTHS = np.array([7, 1, 4, 6], np.int32)


class Planted(Transformer):
    """The target, with its least likely token in place of the likeliest at some positions of every cycle."""

    def __init__(self, wrong):
        super().__init__(CONFIG, rngs=nnx.Rngs(0))
        self.wrong = nnx.Variable(jnp.isin(jnp.arange(PERIOD), jnp.array(wrong)))

    def __call__(self, tokens, positions, cache, *, taps=()):
        hidden, tapped, pending = super().__call__(tokens, positions, cache, taps=taps)
        wrong = self.wrong[...][positions % PERIOD]
        return jnp.where(wrong[..., None], -hidden, hidden), tapped, pending


@jax.jit
def fresh_cache(text):
    cache = TARGET.init_cache(*text.shape)
    positions = jnp.broadcast_to(jnp.arange(text.shape[1]), text.shape)
    return TARGET(text, positions, cache)[2]


def assert_same_cache(cache, lengths, expected):
    for found, fresh in zip(jax.tree.leaves(cache), jax.tree.leaves(expected), strict=True):
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(found[row, :, :length], fresh[row, :, :length], atol=2e-5)


# Where the length is a multiple of the period, the first proposal comes from position 6 of the cycle, and is
# wrong: one token. Then a right and a wrong one: two tokens. Then three right ones and the bonus token, which
# makes seven. And in the other order, 1 + 4 + 2.
@pytest.mark.parametrize("wrong, cycle", (((6, 1), [0, 1, 3]), ((6, 5), [0, 3, 1])))
def test_caches_after_nothing_a_part_and_all_of_a_draft(wrong, cycle):
    decoder = specjax.Decoder(
        TARGET, Model(Planted(wrong)), specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, debug=True)
    )
    states = [jax.tree.map(np.array, state := decoder.start(PROMPTS, LENGTHS))]
    while np.any(state.running):
        states.append(jax.tree.map(np.array, state := decoder.run_rounds(state, 1)))
    expected = fresh_cache(state.tokens)
    for state in states:
        assert_same_cache(state.cache, state.cached_length, expected)
        assert_same_cache(state.draft.cache, state.draft.length, expected)
    for old, new in itertools.pairwise(states):
        # The draft lacks the last token, and after full acceptance the last draft token, which was never fed.
        drafted, accepted = (getattr(new.stats, n) - getattr(old.stats, n) for n in ("drafted", "accepted"))
        all_accepted = (drafted > 0) & (accepted == drafted)
        np.testing.assert_array_equal(
            (new.length - 1 - new.draft.length)[old.running], all_accepted[old.running]
        )
    # The patterns are those, in every row, from where it joins the cycle to where its budget cuts it.
    accepted = np.diff([state.stats.accepted for state in states], axis=0)
    for row in accepted.T:
        patterns = "".join(map(str, row))
        assert patterns.count("".join(map(str, cycle * 2))) >= 1, patterns
