"""The acceptance rules by exact enumeration: every draft, every accept outcome, float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafts import Proposal
from specjax.sampling import Noise
from specjax.testing import enumerate_rule, exact_law, total_variation
from specjax.verify import verify_block, verify_coupled, verify_token
from specjax.verify.token import log_residual

RULES = pytest.mark.parametrize("rule", (verify_token, verify_block))


def random_law(seed, vocab_size=3, zeros=False, sharpness=1.0):
    """A law for each prefix, of its own."""

    def law(prefix):
        rng = np.random.default_rng([seed, *prefix])
        weights = rng.exponential(size=vocab_size) ** sharpness
        if zeros:
            weights[rng.integers(vocab_size)] = 0
        return weights / weights.sum()

    return law


def constant(*law):
    return lambda prefix: np.array(law) / np.sum(law)


def error(rule, target, draft, gamma=2, **kwargs):
    """How far the emitted law is from the target's."""
    outcome = enumerate_rule(rule, target, draft, gamma, **kwargs)
    return total_variation(outcome.law, exact_law(target, gamma + 1))


LAWS = {
    "equal": (random_law(0), random_law(0)),
    "disjoint": (constant(0.5, 0.5, 0, 0), constant(0, 0, 0.25, 0.75)),
    "zeros in the draft": (random_law(2), random_law(3, zeros=True)),
    "zeros in the target": (random_law(4, zeros=True), random_law(5)),
    "zeros in both": (random_law(6, zeros=True), random_law(7, zeros=True)),
}


@RULES
@pytest.mark.parametrize("name", LAWS)
def test_emitted_tokens_have_the_targets_law(rule, name):
    assert error(rule, *LAWS[name]) < 1e-12


@RULES
@pytest.mark.smoke
def test_random_pairs(rule):
    for seed in range(50):
        target, draft = random_law(seed), random_law(1000 + seed, sharpness=1 + seed % 3)
        assert error(rule, target, draft) < 1e-12, seed


@RULES
@pytest.mark.parametrize("vocab_size, gamma", ((4, 3), (3, 1), (2, 3)))
def test_other_shapes(rule, vocab_size, gamma):
    assert error(rule, random_law(0, vocab_size), random_law(1, vocab_size), gamma) < 1e-12


@RULES
def test_stopping_by_what_came_before_keeps_the_law(rule):
    """Whether slot 1 is live depends on the token of slot 0, slot 2 on both; the last live one is a leaf."""
    live = lambda drafted: 1 if drafted[0] == 2 else 2 if sum(drafted[:2]) % 2 else 3  # noqa: E731
    for seed in range(5):
        assert error(rule, random_law(seed), random_law(100 + seed), 3, live=live) < 1e-12


@RULES
def test_dropping_the_block_for_the_token_it_begins_with_does_not(rule):
    """The enumeration sees it when whether a slot is live depends on the token drawn there."""
    live = lambda drafted: 0 if drafted[0] == 2 else 2  # noqa: E731
    assert error(rule, random_law(0), random_law(1), live=live) > 0.01


@RULES
def test_a_point_mass_may_come_from_anywhere(rule):
    """Without `log_q` each drafted token counts as certain, which is exact however it was chosen."""
    assert error(rule, random_law(0), random_law(1), point_mass=True) < 1e-12


def certain(law, where=lambda prefix: True):
    """A law that is certain of its likeliest token after some prefixes, such as that of an n-gram draft."""
    return lambda prefix: np.eye(3)[np.argmax(law(prefix))] if where(prefix) else law(prefix)


@RULES
def test_laws_that_are_certain_in_places(rule):
    for seed in range(10):
        draft = certain(random_law(100 + seed), where=lambda prefix: sum(prefix) % 2 == 0)
        assert error(rule, random_law(seed), draft) < 1e-12, seed


def test_of_certain_laws_the_block_rule_accepts_what_the_token_rule_does():
    for seed in range(10):
        target, draft = random_law(seed), certain(random_law(100 + seed))
        token, block = (enumerate_rule(rule, target, draft, 2) for rule in (verify_token, verify_block))
        np.testing.assert_allclose(block.expected_accepted, token.expected_accepted, rtol=1e-12)


def test_the_published_example():
    """Sun et al., section 3: expected accepted tokens 10/9 and 11/9."""
    target, draft = constant(1, 2), constant(2, 1)
    token, block = (enumerate_rule(rule, target, draft, 2) for rule in (verify_token, verify_block))
    np.testing.assert_allclose(token.expected_accepted, 10 / 9, rtol=1e-12)
    np.testing.assert_allclose(block.expected_accepted, 11 / 9, rtol=1e-12)


def test_block_never_accepts_less_than_token():
    gains = []
    for seed in range(200):
        target, draft = random_law(seed), random_law(1000 + seed, sharpness=1 + seed % 3)
        token, block = (enumerate_rule(rule, target, draft, 2) for rule in (verify_token, verify_block))
        gains.append(block.expected_accepted - token.expected_accepted)
    assert min(gains) > -1e-12
    assert np.mean(gains) > 0.005


def residual_from_p_alone(log_p, proposal, noise):
    n_accepted, _ = verify_token(log_p, proposal, noise)
    return n_accepted, jnp.argmax(log_p[n_accepted] + noise.replacement_gumbel(log_p.shape[1], log_p.dtype))


def block_with_the_token_residual(log_p, proposal, noise):
    n_accepted, token = verify_block(log_p, proposal, noise)
    at = jnp.minimum(n_accepted, log_p.shape[0] - 2)
    residual = log_residual(log_p[at], proposal.log_q[at], proposal.tokens[at])
    drawn = jnp.argmax(residual + noise.replacement_gumbel(log_p.shape[1], log_p.dtype))
    return n_accepted, jnp.where(n_accepted < proposal.live, drawn, token)


@pytest.mark.parametrize("broken", (residual_from_p_alone, block_with_the_token_residual))
def test_the_enumeration_rejects_broken_rules(broken):
    assert max(error(broken, random_law(seed), random_law(10 + seed)) for seed in range(3)) > 0.01


@dataclasses.dataclass(frozen=True)
class Chosen:
    log_u: jax.Array
    gumbel: jax.Array

    def accept_log_uniform(self, slots, dtype):
        return self.log_u

    def replacement_gumbel(self, size, dtype):
        return self.gumbel


P = jnp.log(jnp.array([[0.5, 0.3, 0.2]] * 3))


@RULES
def test_a_rejection_that_only_rounding_can_cause_falls_back_to_the_target(rule):
    """p = q leaves no residual; a u above 1 forces the impossible rejection."""
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(2), P[:2], jnp.bool_(False))
    n_accepted, token = rule(P, proposal, Chosen(jnp.array([0.1, 0.1]), jnp.array([0.0, 9.0, 0.0])))
    assert (int(n_accepted), int(token)) == (0, 1)


@RULES
def test_slots_that_are_not_live_may_hold_anything(rule):
    """As after draft logits that are not finite."""
    log_q = P[:2].at[1].set(jnp.nan)
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(1), log_q, jnp.bool_(True))
    for log_u, accepted in ((0.0, 1), (0.1, 0)):
        noise = Chosen(jnp.array([log_u, -9.0]), jnp.array([0.0, 0.0, 9.0]))
        n_accepted, token = rule(P, proposal, noise)
        assert (int(n_accepted), int(token)) == (accepted, 2)


@RULES
def test_a_point_mass_is_accepted_with_its_probability_and_replaced_by_another_token(rule):
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(2), None, jnp.bool_(False))
    noise = Chosen(jnp.log(jnp.array([0.49, 0.51])), jnp.array([9.0, 0.0, 0.0]))
    n_accepted, token = rule(P, proposal, noise)
    assert (int(n_accepted), int(token)) == (1, 1)


def test_a_block_passes_by_its_longest_prefix():
    """The first prefix fails alone; the rule must not stop there."""
    target = jnp.log(jnp.array([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]))
    draft = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9]]))
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(2), draft, jnp.bool_(False))
    # r = 1/9, then 1: the second prefix passes at any u.
    noise = Chosen(jnp.log(jnp.array([0.999, 0.999])), jnp.array([9.0, 0.0]))
    assert int(verify_block(target, proposal, noise)[0]) == 2
    assert int(verify_token(target, proposal, noise)[0]) == 0


def test_coupled_emits_the_targets_own_tokens_whatever_is_proposed():
    rng = np.random.default_rng(0)
    for trial in range(50):
        log_p = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(4, 6)), jnp.float32))
        noise = Noise.of_round(jnp.uint32(trial), jnp.int32(5), jnp.int32(20), shared=True)
        gumbel = jnp.stack([noise.position_gumbel(offset, 6, jnp.float32) for offset in range(4)])
        own = np.argmax(log_p + gumbel, axis=1)
        drafted = np.where(rng.random(3) < 0.7, own[:3], rng.integers(0, 6, 3))
        live = rng.integers(0, 4)
        proposal = Proposal(jnp.asarray(drafted), jnp.int32(live), None, jnp.bool_(False))
        n_accepted, token = verify_coupled(log_p, proposal, noise)
        agree = int(np.cumprod((drafted == own[:3]) & (np.arange(3) < live)).sum())
        assert (int(n_accepted), int(token)) == (agree, own[agree])


def test_coupled_draws_match_as_often_as_the_formula_says():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    noise = Noise.of_round(jnp.arange(100_000, dtype=jnp.uint32), jnp.zeros(100_000, jnp.int32),
                           jnp.zeros(100_000, jnp.int32), shared=True)  # fmt: skip
    gumbel = np.asarray(jax.vmap(lambda noise: noise.position_gumbel(0, 3, jnp.float32))(noise))
    matched = np.mean(np.argmax(np.log(p) + gumbel, axis=1) == np.argmax(np.log(q) + gumbel, axis=1))
    expected = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(3)) for x in range(3))
    assert abs(matched - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 100_000)


@pytest.mark.parametrize(
    "arguments, message",
    (
        ({"gamma": 0}, "gamma is 0; expected at least 1"),
        ({"draft": lambda prefix: np.array([0.5, 0.25])}, r"draft\(\(\)\) is \[0.5  0.25\]; expected a law"),
        (
            {"target": lambda prefix: np.array([1.5, -0.5])},
            r"target\(\(\)\) is \[ 1.5 -0.5\]; expected a law",
        ),
    ),
)
def test_an_enumeration_of_what_is_no_law_is_refused(arguments, message):
    fair = {"target": lambda prefix: np.array([0.5, 0.5]), "draft": lambda prefix: np.array([0.5, 0.5])}
    with pytest.raises(ValueError, match=message):
        enumerate_rule(verify_token, **fair | {"gamma": 1} | arguments)
