"""Recorded rounds are what statistics count; replayed ones are what another gamma really does."""

import numpy as np
import pytest

import specjax
from specjax.drafts import Model
from specjax.testing import TableLM, perturbed
from specjax.tune.trace import Trace, batch_widths, counters, record

VOCAB, NEW, BATCH, LONG, SHORT = 40, 120, 4, 6, 2
TARGET = TableLM.random(VOCAB, seed=3, scale=2.0)
DRAFT = Model(perturbed(TARGET, 0.4))
PROMPTS = np.random.default_rng(0).integers(0, VOCAB, (BATCH, 5)).astype(np.int32)
LENGTHS = np.full(BATCH, 5)


def trace(live, accepted, emitted=None):
    accepted = np.array(accepted)
    return Trace(
        live=np.array(live), accepted=accepted, emitted=accepted + 1 if emitted is None else np.array(emitted)
    )


def decoder(gamma, draft=DRAFT):
    return specjax.Decoder(TARGET, draft, specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma))


def start(decoder):
    return decoder.start(PROMPTS, LENGTHS, stop=specjax.Stop(eos_ids=[]))


def test_a_record_adds_up_to_the_statistics():
    own = decoder(LONG)
    out = own.result(own.run_rounds(start(own)))
    traces = record(own, start(own))
    for row, found in enumerate(traces):
        assert found.rounds == out.stats.rounds[row]
        assert found.tokens == NEW
        assert np.all(found.accepted <= found.live)
        drafted_at, accepted_at, rounds = counters([found], LONG)
        np.testing.assert_array_equal(drafted_at, out.stats.drafted_at[row])
        np.testing.assert_array_equal(accepted_at, out.stats.accepted_at[row])
        assert rounds == out.stats.rounds[row]
    # Rows differ, and blocks are accepted in every way.
    assert set(np.concatenate([found.accepted for found in traces])) == set(range(LONG + 1))


def test_a_replay_is_what_the_shorter_draft_does():
    """Rounds of each row within the few whose bonus token the longer draft never saw."""
    traces = record(decoder(LONG), start(decoder(LONG)))
    real = record(decoder(SHORT), start(decoder(SHORT)))
    for long, short in zip(traces, real, strict=True):
        replayed = long.replay(SHORT, LONG)
        assert replayed.tokens == NEW
        assert abs(replayed.rounds - short.rounds) <= np.sum(long.accepted == LONG)
    total = sum(long.replay(SHORT, LONG).rounds for long in traces)
    assert total == pytest.approx(sum(short.rounds for short in real), rel=0.05)


def test_frequencies_by_position_would_not_tell():
    """Runs of accepted tokens make a short draft look worse than it is: why rounds are replayed."""
    # Two tokens of the target's own, then 12 that are copied: the longer draft's blocks are 0, 0, then full.
    long = trace([6] * 4, [0, 0, 6, 5])
    replayed = long.replay(2, 6)
    assert replayed.tokens / replayed.rounds == pytest.approx(15 / 7)
    survived = np.sum(long.accepted[:, None] > np.arange(2), axis=0) / long.rounds
    assert 1 + survived.sum() == pytest.approx(2.0)


def test_a_replay_by_hand():
    """Blocks of 4 with a rejection after 3, and no proposal at all: the same runs in blocks of 2."""
    replayed = trace([4, 0, 4], [3, 0, 1]).replay(2, 4)
    np.testing.assert_array_equal(replayed.live, [2, 2, 0, 1])
    np.testing.assert_array_equal(replayed.accepted, [2, 0, 0, 1])
    assert replayed.tokens == 7
    assert trace([4], [3]).replay(4, 4).rounds == 1
    with pytest.raises(ValueError, match="gamma is 5"):
        trace([4], [3]).replay(5, 4)


def test_a_draft_that_is_never_wrong_replays_to_full_blocks():
    replayed = trace([6] * 6 + [5], [6] * 6 + [5]).replay(2, 6)
    np.testing.assert_array_equal(replayed.accepted, [2] * 16)
    np.testing.assert_array_equal(replayed.live, replayed.accepted)


def test_a_batch_is_as_slow_as_its_slowest_row_and_as_wide_as_its_longest_proposal():
    rows = [trace([4, 0, 1], [4, 0, 1]), trace([0, 0, 0, 2, 0], [0, 0, 0, 0, 0])]
    assert batch_widths(rows, (2, 3, 5)) == [5, 2, 2, 3, 2]
    assert batch_widths(rows, (5,)) == [5] * 5
    assert batch_widths(rows[:1], (1, 5)) == [5, 1, 5]
