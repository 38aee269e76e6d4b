"""Length policies: what they look at, that it keeps the law, and what they choose."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model, NoDraft, Outcome
from specjax.policies import Adaptive, BatchAdaptive, Confidence, Entropy, Fixed, policy_named
from specjax.testing import Oracle, TableLM, check_caches, enumerate_rule, exact_law, total_variation
from specjax.verify import verify_block, verify_token
from tests.drafts.test_model import Recurrent

GAMMA = 4


def random_law(*seed):
    def law(prefix):
        weights = np.random.default_rng([*seed, *prefix]).exponential(size=3) ** 2
        return weights / weights.sum()

    return law


def predicted(policy, law):
    """How much of a drafted block is live, from the laws along it."""

    def live(drafted):
        for slot in range(len(drafted)):
            if not policy.continues((), np.log(law(drafted[:slot]))[None], slot)[0]:
                return slot
        return len(drafted)

    return live


def peeked(law):
    """The same for a policy that looks at the token drawn."""
    return lambda drafted: next(
        (slot for slot, token in enumerate(drafted) if law(drafted[:slot])[token] < 0.5), len(drafted)
    )


@pytest.mark.parametrize("rule", (verify_token, verify_block))
@pytest.mark.parametrize("policy", (Confidence(0.7), Entropy(0.6)), ids=("confidence", "entropy"))
def test_stopping_by_the_law_of_a_slot_keeps_the_targets_law(rule, policy):
    """By enumeration of every draft and outcome; blocks stop after 0, 1 and 2 tokens."""
    stops = set()
    for seed in range(10):
        target, draft = random_law(seed), random_law(100 + seed)
        live = predicted(policy, draft)
        stops |= {live((first, second)) for first in range(3) for second in range(3)}
        emitted = enumerate_rule(rule, target, draft, 2, live=live)
        assert total_variation(emitted.law, exact_law(target, 3)) < 1e-12, seed
    assert stops == {0, 1, 2}


@pytest.mark.parametrize("rule", (verify_token, verify_block))
def test_stopping_by_the_token_drawn_does_not(rule):
    emitted = enumerate_rule(rule, random_law(0), random_law(100), 2, live=peeked(random_law(100)))
    assert total_variation(emitted.law, exact_law(random_law(0), 3)) > 0.01


def test_bounds_are_on_the_largest_probability_and_the_entropy():
    laws = jnp.log(jnp.array([[0.6, 0.4, 0.0], [0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(Confidence(0.55).continues((), laws, 0), [True, False, True])
    # 0.673, 1.040 and 0 nats.
    np.testing.assert_array_equal(Entropy(0.7).continues((), laws, 0), [True, False, True])
    np.testing.assert_array_equal(Entropy(0.0).continues((), laws, 0), [False, False, True])
    broken = jnp.full((1, 3), jnp.nan)
    assert not Confidence(0.0).continues((), broken, 0)[0]
    assert not Entropy(9.0).continues((), broken, 0)[0]


def outcome(live, accepted, ran=True):
    """Of a round, as far as policies look at it."""
    live, accepted = jnp.asarray(live, jnp.int32), jnp.asarray(accepted, jnp.int32)
    count = jnp.where(jnp.asarray(ran), accepted + 1, 0)
    unread = {"scored": count, "emitted": count, "length": count, "features": (), "logits": count}
    return Outcome(live=live, accepted=accepted, count=count, **unread)


def simulate(policy, rates, rounds, state=None, seed=0):
    """Lengths int[rounds, B] that rows choose whose draft tokens are accepted with probabilities `rates`."""
    rng, chosen = np.random.default_rng(seed), []
    state = state or policy.init(len(rates), GAMMA)
    update = jax.jit(policy.update)
    context = types.SimpleNamespace(max_live=jnp.full(len(rates), GAMMA, jnp.int32))
    for _ in range(rounds):
        live = np.asarray(policy.limit(state, context))
        hits = rng.random((len(rates), GAMMA)) < np.array(rates)[:, None]
        state = update(state, outcome(live, np.minimum(np.cumprod(hits, axis=1).sum(axis=1), live)))
        chosen.append(live)
    return np.array(chosen), state


# A round with a draft takes 0.3 more, and 0.2 more for each token.
COST = (1.0, 1.5, 1.7, 1.9, 2.1)


def best_length(rate):
    lengths = np.arange(GAMMA + 1)
    return int(np.argmax([np.sum(rate ** np.arange(length + 1)) / COST[length] for length in lengths]))


def test_lengths_become_those_that_pay():
    """None where drafts are wrong, all where they are right, and what the cost model says in between."""
    rates = (0.02, 0.55, 0.65, 0.98)
    chosen, _ = simulate(Adaptive(cost=COST), rates, 400)
    np.testing.assert_array_equal(chosen[0], GAMMA)
    settled = chosen[100:]
    assert [best_length(rate) for rate in rates] == [0, 2, 3, 4]
    assert np.mean(settled[:, 0] == 0) > 0.85
    assert np.mean(settled[:, 3] == GAMMA) > 0.95
    for row in (1, 2):
        values = [np.sum(rates[row] ** np.arange(length + 1)) / COST[length] for length in range(GAMMA + 1)]
        assert np.mean(np.array(values)[settled[:, row]]) > 0.95 * max(values)


def test_a_row_that_sits_out_tries_again_and_comes_back():
    policy = Adaptive(cost=COST)
    wrong, state = simulate(policy, (0.0,), 300)
    tries = np.flatnonzero(wrong[100:] > 0)
    assert 2 < len(tries) < 40
    right, _ = simulate(policy, (0.98,), 200, state)
    assert np.all(right[-50:] == GAMMA)


def test_a_batch_has_one_length_that_suits_most_of_its_rows():
    policy = BatchAdaptive(cost=COST)
    for rates, most in (((0.02, 0.02, 0.02, 0.6), False), ((0.98, 0.98, 0.98, 0.02), True)):
        chosen, _ = simulate(policy, rates, 300)
        np.testing.assert_array_equal(chosen, chosen[:, :1] + np.zeros_like(chosen))
        assert np.mean(chosen[100:] == (GAMMA if most else 0)) > 0.85


def test_rows_that_did_not_run_count_for_nothing_in_a_batch():
    policy = BatchAdaptive(cost=COST)
    state, update = policy.init(2, GAMMA), jax.jit(policy.update)
    for _ in range(40):
        state = update(state, outcome([GAMMA, 0], [0, 0], ran=[True, False]))
    np.testing.assert_array_equal(state.length, 0)


def test_rounds_of_a_generation_follow_the_policy():
    """Rows of which the draft is never right, always right, and wrong at its third token; greedy."""
    target, new = TableLM.random(7, seed=0, scale=2.5), 150
    prompts, lengths = np.array([[1, 2], [3, 4], [5, 6]], np.int32), np.array([2, 2, 2])

    def run(draft, **config):
        config = specjax.DecodeConfig(max_new_tokens=new, gamma=GAMMA, debug=True, **config)
        return specjax.generate(target, prompts, lengths, draft=draft, config=config)

    plain = run(NoDraft(width=GAMMA))
    oracle = Oracle.of(plain.tokens, lengths, [0, GAMMA, 2])
    out = run(oracle, policy=Adaptive(cost=COST), verify_widths=(1, 3))
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    drafted, rounds = np.asarray(out.stats.drafted), np.asarray(out.stats.rounds)
    assert drafted[0] < 0.3 * rounds[0]
    assert rounds[1] == new // (GAMMA + 1)
    assert drafted[1] == rounds[1] * GAMMA
    assert 1.5 < drafted[2] / rounds[2] < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("positional", "recurrent"))
def test_caches_are_right_after_rounds_that_a_model_sat_out(kind):
    """The draft is nearly always wrong, and follows the text again when it is asked again."""
    target = TableLM.random(11, seed=0) if kind == "positional" else Recurrent()
    wrong = nnx.clone(target)
    wrong.table[...] = -wrong.table[...]
    config = specjax.DecodeConfig(max_new_tokens=150, gamma=GAMMA, policy=Adaptive(cost=COST, memory=0.95))
    decoder = specjax.Decoder(target, Model(wrong), config)
    state, behind = decoder.start(np.array([[1, 2], [3, 0]], np.int32), [2, 1]), []
    while np.any(state.running):
        state = decoder.run_rounds(state, 1)
        behind.append(np.asarray(state.length - 1 - state.draft.length))
        check_caches(target, state, draft=Model(wrong))
    assert np.max(behind) > GAMMA + 1
    assert np.sum(np.diff(np.max(behind, axis=1)) < -GAMMA) > 0, "no row has caught up"


@pytest.mark.parametrize(
    "name, policy",
    (
        ("fixed", Fixed()),
        ("confidence", Confidence()),
        ("confidence:0.25", Confidence(0.25)),
        ("entropy:2", Entropy(2.0)),
        ("adaptive", Adaptive()),
        ("batch-adaptive", BatchAdaptive()),
    ),
)
def test_policies_have_names(name, policy):
    assert policy_named(name) == policy
    assert specjax.DecodeConfig(policy=name).length_policy == policy
    assert hash(policy_named(name)) == hash(policy)


@pytest.mark.parametrize("name", ("", "greedy", "fixed:3", "confidence:", "confidence:x", "confidence:2"))
def test_what_names_no_policy_is_refused(name):
    with pytest.raises(ValueError, match=r"DecodeConfig.policy: .* is no length policy; expected one"):
        specjax.DecodeConfig(policy=name)


@pytest.mark.parametrize(
    "make, message",
    (
        (lambda: Confidence(1.5), "Confidence.threshold is 1.5; expected a probability"),
        (lambda: Entropy(-1), "Entropy.bound is -1; expected at least 0"),
        (lambda: Adaptive(cost=(1.0, 0.0)), r"Adaptive.cost is \(1.0, 0.0\); expected times above 0"),
        (lambda: BatchAdaptive(memory=1), "BatchAdaptive.memory is 1; expected a number between 0 and 1"),
        (lambda: Adaptive(margin=-0.1), "Adaptive.margin is -0.1; expected at least 0"),
        (
            lambda: specjax.DecodeConfig(gamma=2, policy=Adaptive(cost=(1.0, 1.2))),
            r"DecodeConfig.policy: Adaptive.cost has 2 times; expected gamma \+ 1, 3",
        ),
    ),
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
