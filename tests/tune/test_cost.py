"""The cost model against the literature's worked example and against what the decoder counts."""

import jax
import numpy as np
import pytest

import specjax
from specjax.drafts import Model
from specjax.testing import Oracle, TableLM, perturbed
from specjax.tune import (
    RoundTime,
    acceptance,
    breakeven_rate,
    expected_tokens,
    expected_tokens_at,
    survival,
)
from tests.counting import counting_model

VOCAB, GAMMA, NEW = 12, 4, 40


def test_the_worked_example():
    """Draft 8 ms, verify 12 ms, overhead 2 ms, 3.2 tokens a round; plain decoding 10 ms a token."""
    time = RoundTime(draft=8, verify=12, overhead=2)
    assert time.total == 22
    assert time.per_token(3.2) == pytest.approx(6.875)
    assert round(time.speedup(3.2, plain=10), 2) == 1.45
    assert time.breakeven_tokens(plain=10) == pytest.approx(2.2)


def test_a_slower_draft_gains_less_and_then_nothing():
    slower = RoundTime(draft=15, verify=12, overhead=2)
    assert round(slower.speedup(3.2, plain=10), 2) == 1.10
    # 2 tokens a round: 14.5 ms a token, so plain decoding is better.
    assert slower.per_token(2.0) == pytest.approx(14.5)
    assert slower.speedup(2.0, plain=10) < 1
    assert slower.breakeven_tokens(plain=10) == pytest.approx(2.9)


def test_constant_acceptance():
    assert expected_tokens_at(0.8, 4) == pytest.approx(3.3616)
    for rate in (0.0, 0.3, 0.99, 1.0):
        powers = rate ** np.arange(1, GAMMA + 1)
        assert expected_tokens_at(rate, GAMMA) == pytest.approx(expected_tokens(powers))
    assert expected_tokens_at(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    assert expected_tokens_at(1.0, 4) == 5


def test_the_acceptance_at_which_speculation_pays():
    rate = breakeven_rate(2.2, GAMMA)
    assert expected_tokens_at(rate, GAMMA) == pytest.approx(2.2)
    assert breakeven_rate(1.0, GAMMA) == 0
    assert breakeven_rate(GAMMA + 1, GAMMA) == pytest.approx(1)
    assert breakeven_rate(GAMMA + 1.1, GAMMA) is None


@pytest.mark.parametrize("wrong_at", range(GAMMA + 1))
def test_a_rejection_at_j_commits_j_and_the_target_s_own(wrong_at):
    """Through the real decoder: j accepted tokens and one more; of a draft that is never wrong gamma + 1."""
    text = (5 + np.arange(NEW))[None] % VOCAB  # counting on from 4
    draft = Oracle.of(text, [2], [wrong_at])
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA)
    stop = specjax.Stop(eos_ids=[], max_new_tokens=6 * (wrong_at + 1))
    target = counting_model(VOCAB)
    out = specjax.generate(target, np.array([[3, 4]]), [2], draft=draft, config=config, stop=stop)
    stats = jax.device_get(out.stats)
    assert stats.rounds[0] == 6
    assert stats.emitted[0] == 6 * (wrong_at + 1)
    assert stats.accepted[0] == 6 * wrong_at
    survived = survival(stats.accepted_at[0], stats.rounds[0])
    np.testing.assert_array_equal(survived, np.arange(GAMMA) < wrong_at)
    assert expected_tokens(survived) == wrong_at + 1


def test_measured_counters_give_the_measured_tokens_per_round():
    """E[N] = 1 + sum of P(first i accepted) is emitted / rounds where no row ends within a block."""
    target = TableLM.random(VOCAB, seed=0)
    prompts = np.random.default_rng(0).integers(0, VOCAB, (8, 4)).astype(np.int32)
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, rule="token")
    out = specjax.generate(
        target,
        prompts,
        np.full(8, 4),
        draft=Model(perturbed(target, 0.5)),
        config=config,
        sampling=specjax.Sampling(temperature=1.0),
        stop=specjax.Stop(eos_ids=[]),
    )
    stats = jax.tree.map(lambda counts: np.sum(counts, axis=0), jax.device_get(out.stats))
    survived = survival(stats.accepted_at, stats.rounds)
    assert expected_tokens(survived) == pytest.approx(stats.emitted / stats.rounds)
    assert 1.5 < expected_tokens(survived) < GAMMA
    rates = acceptance(stats.drafted_at, stats.accepted_at, stats.rounds)
    assert np.all((rates > 0.2) & (rates < 1))
    # Of the tokens that were tried; tokens cut off by the budget were not.
    assert rates[0] == pytest.approx(stats.accepted_at[0] / stats.drafted_at[0])


def test_acceptance_of_slots_that_were_rarely_live():
    rates = acceptance([8, 2, 0], [4, 1, 0], 10)
    np.testing.assert_allclose(rates, [0.5, 0.5, np.nan])


@pytest.mark.parametrize(
    "call, message",
    (
        (lambda: RoundTime(draft=-1, verify=1), r"RoundTime.draft is -1"),
        (lambda: RoundTime(draft=0, verify=0), "nothing but zeros"),
        (lambda: RoundTime(draft=1, verify=float("nan")), "RoundTime.verify is nan"),
        (lambda: RoundTime(draft=1, verify=1).per_token(0.5), "tokens is 0.5"),
        (lambda: RoundTime(draft=1, verify=1).speedup(2, plain=0), "plain is 0"),
        (lambda: survival([3, 4], 5), "counts that do not grow"),
        (lambda: survival([6, 4], 5), "counts that do not grow"),
        (lambda: survival([0], 0), "rounds is 0"),
        (lambda: expected_tokens([0.5, 0.6]), "probabilities that do not grow"),
        (lambda: expected_tokens([[0.5]]), "one dimension"),
        (lambda: expected_tokens_at(1.5, 2), "rate is 1.5"),
        (lambda: expected_tokens_at(0.5, -1), "gamma is -1"),
    ),
)
def test_what_makes_no_sense_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
