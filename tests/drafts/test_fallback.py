"""One draft or the other in each row: which, at what price, and with which law."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.decoding.round import round_context, round_noise
from specjax.drafts import Fallback, Model, Ngram, NoDraft, Recycling
from specjax.testing import FromLogits, TableLM, check_caches, perturbed

VOCAB, GAMMA, NEW = 7, 3, 30
TARGET = TableLM.random(VOCAB, seed=0, scale=2.5)
# The first row's text has a match of three tokens, the second's has none, the third one's is too short.
PROMPTS = np.array([[1, 2, 3, 4, 5, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 0], [6, 5, 6, 0, 0, 0, 0, 0]], np.int32)
LENGTHS = np.array([8, 7, 3], np.int32)
CONFIG = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, debug=True)
SAMPLING = specjax.Sampling(temperature=[0.0, 1.0, 1.0], seed=2)
SEARCH = Ngram(min_match=3)
DRAFT = Fallback(SEARCH, Model(perturbed(TARGET, 0.3)))
DECODER = specjax.Decoder(TARGET, DRAFT, CONFIG)


@dataclasses.dataclass(frozen=True)
class Counted(Ngram):
    """An n-gram draft that counts its rounds."""

    def init(self, module, batch, capacity, vocab_size):
        return jnp.zeros(batch, jnp.int32)

    def propose(self, module, carry, context):
        proposal, _ = super().propose(module, (), context)
        return proposal, carry + 1


@pytest.fixture(scope="module")
def start():
    return DECODER.start(PROMPTS, LENGTHS, sampling=SAMPLING)


def propose(draft, state, **changes):
    """Of a draft without weights, in the place of the one that made the state."""
    program = DECODER._compiled_for(state).program
    context = round_context(program, TARGET, state, round_noise(program, state))
    context = dataclasses.replace(context, **changes)
    carry = draft.init(draft.module, len(LENGTHS), 0, VOCAB)
    return draft.propose(draft.module, carry, context)


def test_rows_take_the_first_draft_where_it_proposes_anything(start):
    logits = np.random.default_rng(0).normal(size=(3, GAMMA, VOCAB))
    second = FromLogits.of(logits)
    proposal, carry = propose(Fallback(SEARCH, second), start)
    alone, _ = propose(second, start)
    np.testing.assert_array_equal(carry.used_first, [True, False, False])
    np.testing.assert_array_equal(proposal.tokens[0], [5, 2, 3])
    np.testing.assert_array_equal(np.exp(proposal.log_q[0]), np.eye(VOCAB)[[5, 2, 3]])
    np.testing.assert_array_equal(proposal.live, GAMMA)
    for found, expected in ((proposal.tokens, alone.tokens), (proposal.log_q, alone.log_q)):
        np.testing.assert_array_equal(found[1:], expected[1:])


def test_of_two_point_masses_neither_has_a_law(start):
    proposal, _ = propose(Fallback(SEARCH, Ngram()), start)
    assert proposal.log_q is None
    np.testing.assert_array_equal(proposal.live, [GAMMA, 0, GAMMA])
    np.testing.assert_array_equal(proposal.tokens[2], [5, 6, 5])


def test_the_second_draft_only_runs_where_some_row_needs_it(start):
    draft = Fallback(SEARCH, Fallback(Ngram(), Counted()))
    some, none = (
        propose(draft, start, max_live=jnp.array(max_live, jnp.int32))[1].second
        for max_live in ([3, 3, 3], [3, 0, 0])
    )
    np.testing.assert_array_equal(some.second, 1)
    np.testing.assert_array_equal(none.second, 0)
    assert np.any(some.used_first)
    assert not np.any(none.used_first)


def test_a_first_draft_that_draws_is_refused(start):
    draft = Fallback(FromLogits.of(np.zeros(VOCAB)), Ngram())
    with pytest.raises(TypeError, match=r"Fallback.first is FromLogits, which draws; expected a point mass"):
        propose(draft, start)


def test_text_and_caches_are_right_after_rounds_that_a_draft_sat_out(start):
    """The model's cache never holds what the search proposed unless it was fed it as text."""
    plain = specjax.generate(TARGET, PROMPTS, LENGTHS, draft=NoDraft(width=GAMMA), config=CONFIG)
    state, used = DECODER.run_rounds(DECODER.start(PROMPTS, LENGTHS, sampling=SAMPLING), 0), []
    while np.any(state.running):
        state = DECODER.run_rounds(state, 1)
        used.append(np.asarray(state.draft.used_first))
        of_second = dataclasses.replace(state, draft=state.draft.second)
        check_caches(TARGET, of_second, draft=DRAFT.second)
    assert np.any(np.all(used, axis=1)), "a round without the model"
    assert np.any(np.any(used, axis=1) & ~np.all(used, axis=1)), "a round in which rows differ"
    np.testing.assert_array_equal(DECODER.result(state).tokens[0], plain.tokens[0])


@pytest.mark.slow
def test_three_drafts_in_a_row():
    out, plain = (
        specjax.generate(TARGET, PROMPTS, LENGTHS, draft=draft, config=CONFIG)
        for draft in (Fallback(SEARCH, Fallback(Recycling(), DRAFT.second)), NoDraft(width=GAMMA))
    )
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert np.sum(out.stats.accepted) > 0
