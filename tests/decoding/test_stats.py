"""Statistics of rows, recounted from a trace of what each round was offered and what became text."""

import jax
import numpy as np
import pytest

import specjax
from specjax.drafts import Model, Ngram
from specjax.testing import TableLM, perturbed

VOCAB, GAMMA, NEW, BATCH = 7, 4, 24, 6
TARGET = TableLM.random(VOCAB, seed=0, scale=3.0)
PROMPTS = np.random.default_rng(0).integers(0, 3, (BATCH, 6)).astype(np.int32)
LENGTHS = np.array([6, 6, 4, 6, 1, 3], np.int32)
# Goes on with 3 4, which an n-gram draft proposes: at the EOS 3 the rest of it is cut off.
PROMPTS[1] = [2, 5, 3, 4, 2, 5]
SAMPLING = specjax.Sampling(temperature=[0, 0, 0, 1, 1, 1], seed=4)
# Rows that end early, at an EOS or at the budget, beside rows that go on; one that has nothing to do.
STOP = specjax.Stop(eos_ids=[[], [3], [], [5], [], []], max_new_tokens=[NEW, NEW, 3, NEW, NEW, 0])


def trace(decoder):
    """For each round (running bool[B], live int[B], drafted int[B, G], blocks of all rows); the results."""
    state = decoder.start(PROMPTS, LENGTHS, sampling=SAMPLING, stop=STOP)
    rounds, results = [], [decoder.result(state)]
    while np.any(state.running):
        proposal = decoder.score(state).proposal
        running, before = np.asarray(state.running), np.asarray(state.length)
        state = decoder.run_rounds(state, 1)
        text, after = np.asarray(state.tokens), np.asarray(state.length)
        blocks = [text[row, before[row] : after[row]] for row in range(BATCH)]
        rounds.append((running, np.asarray(proposal.live), np.asarray(proposal.tokens), blocks))
        results.append(decoder.result(state))
    return rounds, results


@pytest.mark.parametrize(
    "draft, widths",
    ((Ngram(), (2, 3)), pytest.param(Model(perturbed(TARGET, 0.5)), (), marks=pytest.mark.slow)),
    ids=("widths", "model"),
)
def test_statistics_are_what_a_recount_of_every_round_says(draft, widths):
    # Under the token rule a replacement is never the rejected token, so that texts tell what was accepted.
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, verify_widths=widths, rule="token")
    rounds, results = trace(specjax.Decoder(TARGET, draft, config))
    counts = {name: np.zeros(BATCH, int) for name in ("rounds", "emitted", "drafted", "accepted")}
    histograms = {name: np.zeros((BATCH, GAMMA), int) for name in ("drafted_at", "accepted_at")}
    own = np.zeros(BATCH, int)
    for (running, live, drafted, blocks), before, out in zip(rounds, results, results[1:], strict=False):
        for row, block in enumerate(blocks):
            if not running[row]:
                assert len(block) == 0
                for new, old in zip(jax.tree.leaves(out), jax.tree.leaves(before), strict=True):
                    np.testing.assert_array_equal(new[row], old[row])
                continue
            offered = drafted[row, : live[row]]
            same = block[: len(offered)] == offered[: len(block)]
            accepted = int(np.cumprod(same).sum())
            # After the accepted tokens comes one of the target's own, unless the row has ended with them.
            assert len(block) - accepted == 1 or (len(block) == accepted and out.finish_reasons[row] > 0)
            own[row] += len(block) - accepted
            for name, value in zip(counts, (1, len(block), len(offered), accepted), strict=True):
                counts[name][row] += value
            histograms["drafted_at"][row, : len(offered)] += 1
            histograms["accepted_at"][row, :accepted] += 1
        for name, recount in (counts | histograms).items():
            np.testing.assert_array_equal(getattr(out.stats, name), recount, name)
    np.testing.assert_array_equal(counts["emitted"], counts["accepted"] + own)
    np.testing.assert_array_equal(counts["emitted"], out.lengths)
    np.testing.assert_allclose(
        out.stats.mean_tokens_per_round, counts["emitted"] / np.maximum(counts["rounds"], 1), rtol=1e-6
    )
    np.testing.assert_array_equal(out.stats.draft_failures, 0)
    # All of this happened: blocks accepted in no part, in part and as a whole, shorter proposals, both ends.
    assert np.all(np.sum(histograms["accepted_at"], axis=0) > 0)
    assert own[1] < counts["rounds"][1]
    assert 0 < np.sum(counts["accepted"]) < np.sum(counts["drafted"]) < GAMMA * np.sum(counts["rounds"])
    assert set(np.asarray(out.finish_reasons)) == {specjax.FinishReason.EOS, specjax.FinishReason.LENGTH}
    assert counts["rounds"][5] == 0
