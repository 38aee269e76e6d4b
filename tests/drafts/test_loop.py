"""The loop that draws draft tokens: which slots it asks for, and when it ends."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.decoding.round import round_context, round_noise
from specjax.drafts import Model, draw_tokens
from specjax.policies import Confidence
from specjax.testing import TableLM

VOCAB, GAMMA = 6, 4
TARGET = TableLM.random(VOCAB, seed=0)
DECODER = specjax.Decoder(TARGET, Model(TARGET), specjax.DecodeConfig(max_new_tokens=8, gamma=GAMMA))


@pytest.fixture(scope="module")
def context():
    """Of a greedy row beside two sampled ones."""
    sampling = specjax.Sampling(temperature=[0.0, 1.0, 1.0], seed=3)
    state = DECODER.start(np.ones((3, 2), np.int32), [2, 2, 2], sampling=sampling)
    program = DECODER._compiled_for(state).program
    return round_context(program, TARGET, state, round_noise(program, state))


def draw(context, logits, max_live=(GAMMA,) * 3, first=None):
    """The proposal from logits float[B, gamma, V], and the slots that were asked for."""
    context = dataclasses.replace(context, max_live=jnp.array(max_live, jnp.int32))

    def predict(asked, tokens, slot):
        return logits[:, slot], asked.at[slot].add(1)

    return draw_tokens(predict, jnp.zeros(GAMMA, jnp.int32), context, first=first)


LOGITS = jax.random.normal(jax.random.key(0), (3, GAMMA, VOCAB))


@pytest.mark.parametrize("max_live", ((4, 4, 4), (0, 2, 1), (0, 0, 0)))
def test_it_ends_where_no_row_wants_more(context, max_live):
    proposal, asked = draw(context, LOGITS, max_live)
    np.testing.assert_array_equal(proposal.live, max_live)
    np.testing.assert_array_equal(asked, np.arange(GAMMA) < max(max_live))
    assert not np.any(proposal.failed)


def test_it_ends_where_the_last_row_has_failed(context):
    broken = LOGITS.at[0, 1].set(jnp.nan).at[1, 0].set(jnp.inf).at[2, 2].set(jnp.nan)
    proposal, asked = draw(context, broken)
    np.testing.assert_array_equal(proposal.live, [1, 0, 2])
    np.testing.assert_array_equal(asked, [1, 1, 1, 0])
    assert np.all(proposal.failed)


def test_slots_that_nobody_wants_cannot_fail(context):
    proposal, _ = draw(context, LOGITS.at[0, 1].set(jnp.nan), max_live=(1, 4, 4))
    np.testing.assert_array_equal(proposal.live, [1, 4, 4])
    assert not np.any(proposal.failed)


def test_known_first_logits_change_nothing_but_the_question(context):
    """Also that each slot has noise, and a law, of its own."""
    asked_all, _ = draw(context, LOGITS)
    asked_rest, asked = draw(context, LOGITS, first=LOGITS[:, 0])
    jax.tree.map(np.testing.assert_array_equal, asked_rest, asked_all)
    np.testing.assert_array_equal(asked, [0, 1, 1, 1])
    laws = np.exp(asked_all.log_q)
    np.testing.assert_allclose(laws[1:], jax.nn.softmax(LOGITS[1:]), rtol=1e-5)
    np.testing.assert_array_equal(asked_all.tokens[0], np.argmax(LOGITS[0], axis=-1))
    np.testing.assert_array_equal(laws[0], np.eye(VOCAB)[np.asarray(asked_all.tokens[0])])


def test_a_policy_sees_the_law_of_each_slot_and_stops_before_it(context):
    """In greedy rows their model's law, of which they will take the likeliest token."""
    threshold = 0.35
    sure = np.max(jax.nn.softmax(LOGITS), axis=-1) >= threshold
    expected = np.cumprod(sure, axis=1).sum(axis=1)
    assert len(np.unique(expected)) > 1
    proposal, asked = draw(dataclasses.replace(context, policy=Confidence(threshold)), LOGITS)
    np.testing.assert_array_equal(proposal.live, expected)
    np.testing.assert_array_equal(asked, np.arange(GAMMA) <= max(expected))
    assert not np.any(proposal.failed)
