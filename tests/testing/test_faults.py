"""Drafts that go wrong on purpose: what each does, and that text and law do not depend on it."""

import functools

import numpy as np
import pytest
from scipy import stats

import specjax
from specjax.drafts import Model, NoDraft
from specjax.testing import FromLogits, Oracle, TableLM, sequence_law
from tests.reference import table_log_law

VOCAB, GAMMA, NEW = 5, 3, 8
TARGET = TableLM.random(VOCAB, seed=0)
TABLE = np.asarray(TARGET.table[...])

# Greedy rows for the text, beside sampled rows for the law, all in one program for each kind of draft.
GREEDY, SAMPLED, TOKENS = 5, 10_000, 3
BATCH = GREEDY + SAMPLED
ROWS = np.arange(BATCH)
IS_GREEDY = ROWS < GREEDY
PROMPT = (1, 2)
PROMPTS = np.tile(np.array(PROMPT, np.int32), (BATCH, 1))
PROMPTS[:GREEDY] = [[1, 2], [3, 0], [4, 4], [2, 0], [0, 1]]
LENGTHS = np.full(BATCH, 2, np.int32)
PENALTY = {"frequency_penalty": 0.7}


@functools.cache
def run(name):
    return specjax.generate(
        TARGET,
        PROMPTS,
        LENGTHS,
        draft=DRAFTS[name](),
        config=specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, debug=True),
        sampling=specjax.Sampling(temperature=~IS_GREEDY * 1.0, seed=3, **PENALTY),
        stop=specjax.Stop(max_new_tokens=np.where(IS_GREEDY, NEW, TOKENS)),
    )


def repeated(logits):
    return FromLogits.of(np.broadcast_to(logits, (BATCH, GAMMA, VOCAB)))


CERTAIN = np.where(np.arange(VOCAB) == 2, 0.0, -np.inf)
FAILING = np.where(np.arange(GAMMA) < ROWS[:, None] % (GAMMA + 1), 0.0, np.nan)


@functools.cache
def texts():
    """What plain decoding says; in sampled rows that of another row, whose seed is another."""
    tokens = np.array(run("none").tokens)
    tokens[GREEDY:] = np.roll(tokens[GREEDY:], 1, axis=0)
    return tokens


def oracle(wrong_at, **kwargs):
    return lambda: Oracle.of(texts(), LENGTHS, wrong_at, **kwargs)


DRAFTS = {
    "none": lambda: NoDraft(width=GAMMA),
    "oracle": oracle(ROWS % (GAMMA + 1)),
    "always wrong": oracle(0 * ROWS),
    "ids too large": oracle(ROWS % (GAMMA + 1), wrong_token=VOCAB + ROWS),
    "ids below 0": oracle(ROWS % (GAMMA + 1), wrong_token=-1),
    "uniform": lambda: repeated(np.zeros(VOCAB)),
    "point mass": lambda: repeated(CERTAIN),
    "failing": lambda: repeated(FAILING[..., None]),
    "reversed": lambda: Model(TableLM(-TABLE)),
}
QUICK = ("oracle", "ids too large", "failing")
ALL = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in DRAFTS
        if name != "none"
    ],
)


@ALL
def test_greedy_text_is_the_targets_whatever_is_proposed(name):
    np.testing.assert_array_equal(run(name).tokens[:GREEDY], texts()[:GREEDY])


@ALL
def test_sampled_text_has_the_targets_law_whatever_is_proposed(name):
    log_law = table_log_law(TABLE, {"temperature": 1.0, **PENALTY}, PROMPT)
    law = sequence_law(log_law, PROMPT, TOKENS)
    out = np.asarray(run(name).tokens)[GREEDY:, :TOKENS]
    counts = np.bincount(out @ VOCAB ** np.arange(TOKENS - 1, -1, -1), minlength=law.size)
    assert stats.chisquare(counts, law * SAMPLED).pvalue > 1e-5


def test_an_oracle_forces_how_much_is_accepted():
    counted = run("oracle").stats
    wrong_at = ROWS[:GREEDY] % (GAMMA + 1)
    np.testing.assert_array_equal(counted.rounds[:GREEDY], -(-NEW // (wrong_at + 1)))
    accepted = np.asarray(counted.accepted_at)[:GREEDY] > 0
    np.testing.assert_array_equal(accepted, np.arange(GAMMA) < wrong_at[:, None])


@pytest.mark.parametrize("name", ("always wrong", pytest.param("reversed", marks=pytest.mark.slow)))
def test_wrong_drafts_are_never_accepted_in_greedy_rows(name):
    counted = run(name).stats
    assert np.all(np.asarray(counted.drafted)[:GREEDY] > 0)
    np.testing.assert_array_equal(counted.accepted[:GREEDY], 0)


def test_failing_slots_are_not_live_and_those_before_them_are():
    counted = run("failing").stats
    live = np.asarray(counted.drafted_at)[:GREEDY] > 0
    np.testing.assert_array_equal(live, np.isfinite(FAILING[:GREEDY]))
    assert np.all((np.asarray(counted.draft_failures)[:GREEDY] > 0) == np.isnan(FAILING[:GREEDY, -1]))
