"""The token rule by exact enumeration: every draft, every accept outcome, float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafts import Proposal
from specjax.verify import verify_token

VOCAB, GAMMA = 3, 2


class Chosen:
    """Noise that an enumeration chooses: log u of each slot, and the Gumbel vector of the last token."""

    def __init__(self, log_u, gumbel):
        self.log_u, self.gumbel = log_u, gumbel

    def accept_log_uniform(self, slots, dtype):
        return self.log_u.astype(dtype)

    def replacement_gumbel(self, size, dtype):
        return self.gumbel.astype(dtype)


@functools.partial(jax.jit, static_argnums=0)
def apply(rule, log_p, proposal, log_u, gumbel):
    return rule(log_p, proposal, Chosen(log_u, gumbel))


def accept_probability(rule, log_p, proposal, slot):
    """Probability that `slot` is accepted once those before it are: the u at which the rule turns."""

    def accepted(log_u):
        chosen = jnp.where(jnp.arange(GAMMA) < slot, -jnp.inf, 0.0).at[slot].set(log_u)
        return int(apply(rule, log_p, proposal, chosen, jnp.zeros(VOCAB))[0]) > slot

    if accepted(0.0):
        return 1.0
    low, high = -800.0, 0.0
    if not accepted(low):
        return 0.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return np.exp(low)


def last_token_law(rule, log_p, proposal, accepted):
    """Law of the token after `accepted` ones: the weights at which the argmax turns, by bisection."""
    log_u = jnp.where(jnp.arange(GAMMA) < accepted, -jnp.inf, 0.0)

    def chosen(gumbel):
        n_accepted, token = apply(rule, log_p, proposal, log_u, jnp.asarray(gumbel))
        assert int(n_accepted) == accepted
        return int(token)

    base = chosen(np.zeros(VOCAB))
    relative = np.full(VOCAB, -np.inf)
    relative[base] = 0.0
    for other in set(range(VOCAB)) - {base}:

        def wins(bonus, other=other):
            gumbel = np.full(VOCAB, -1e6)
            gumbel[base], gumbel[other] = 0.0, bonus
            return chosen(gumbel) == other

        low, high = 0.0, 800.0
        if wins(high):
            for _ in range(64):
                middle = (low + high) / 2
                low, high = (low, middle) if wins(middle) else (middle, high)
            relative[other] = -high
    weights = np.exp(relative)
    return weights / weights.sum()


def emitted_law(rule, target, draft, live_of):
    """Law of the first GAMMA + 1 tokens when one round is followed by plain decoding.

    Args:
        target, draft: functions of a prefix (a tuple) that give a law float64[V].
        live_of: function of the drafted tokens that gives how many are live.
    """
    law = np.zeros((VOCAB,) * (GAMMA + 1))
    for drafted in itertools.product(range(VOCAB), repeat=GAMMA):
        log_p, log_q = (
            np.log([law_of(drafted[:slot]) for slot in range(stop)])
            for law_of, stop in ((target, GAMMA + 1), (draft, GAMMA))
        )
        weight = np.exp(sum(log_q[slot, token] for slot, token in enumerate(drafted)))
        if weight == 0:
            continue
        live = live_of(drafted)
        tokens = jnp.array(drafted, jnp.int32)
        proposal = Proposal(tokens, jnp.int32(live), jnp.array(log_q), jnp.bool_(False))
        log_p = jnp.array(log_p)
        for accepted in range(live + 1):
            if accepted < live:
                accept = accept_probability(rule, log_p, proposal, accepted)
                reached, weight = weight * (1 - accept), weight * accept
            else:
                reached = weight
            if reached == 0:
                continue
            for token, probability in enumerate(last_token_law(rule, log_p, proposal, accepted)):
                emitted = (*drafted[:accepted], token)
                for rest in itertools.product(range(VOCAB), repeat=GAMMA - accepted):
                    text = emitted + rest
                    plain = np.prod([target(text[:i])[text[i]] for i in range(accepted + 1, GAMMA + 1)])
                    law[text] += reached * probability * plain
    return law


def random_law(seed, zeros=False):
    def law(prefix):
        rng = np.random.default_rng([seed, *prefix])
        weights = rng.exponential(size=VOCAB)
        if zeros:
            weights[rng.integers(VOCAB)] = 0
        return weights / weights.sum()

    return law


def total_variation(rule, target, draft, live_of=lambda drafted: GAMMA):
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        law = emitted_law(rule, target, draft, live_of)
    exact = np.zeros_like(law)
    for text in np.ndindex(law.shape):
        exact[text] = np.prod([target(text[:i])[token] for i, token in enumerate(text)])
    return np.abs(law - exact).sum() / 2


LAWS = {
    "random": (random_law(0), random_law(1)),
    "equal": (random_law(0), random_law(0)),
    "zeros in the draft": (random_law(2), random_law(3, zeros=True)),
    "zeros in the target": (random_law(4, zeros=True), random_law(5)),
    "zeros in both": (random_law(6, zeros=True), random_law(7, zeros=True)),
}


@pytest.mark.parametrize("name", LAWS)
def test_emitted_tokens_have_the_targets_law(name):
    assert total_variation(verify_token, *LAWS[name]) < 1e-12


@pytest.mark.smoke
def test_cutting_live_by_what_came_before_keeps_the_law():
    """As after draft logits that are not finite: slot 1 is live unless the token of slot 0 was 2."""
    assert total_variation(verify_token, *LAWS["random"], lambda drafted: 1 if drafted[0] == 2 else 2) < 1e-12


def test_dropping_the_whole_block_for_its_first_token_does_not_keep_the_law():
    """The enumeration sees it when whether slot 0 is live depends on the token drawn there."""
    assert total_variation(verify_token, *LAWS["random"], lambda drafted: 0 if drafted[0] == 2 else 2) > 0.01


def residual_from_p_alone(log_p, proposal, noise):
    n_accepted, _ = verify_token(log_p, proposal, noise)
    return n_accepted, jnp.argmax(log_p[n_accepted] + noise.replacement_gumbel(VOCAB, log_p.dtype))


def test_the_enumeration_rejects_a_broken_rule():
    assert total_variation(residual_from_p_alone, *LAWS["random"]) > 0.01


def test_a_rejection_that_only_rounding_can_cause_falls_back_to_the_target():
    """p = q leaves no residual; a u above 1 forces the impossible rejection."""
    log_p = jnp.log(jnp.array([[0.5, 0.3, 0.2]] * 3))
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(2), log_p[:2], jnp.bool_(False))
    above_one = jnp.array([0.1, 0.1])
    n_accepted, token = apply(verify_token, log_p, proposal, above_one, jnp.array([0.0, 9.0, 0.0]))
    assert (int(n_accepted), int(token)) == (0, 1)


def test_a_point_mass_is_accepted_with_its_probability_and_replaced_by_another_token():
    log_p = jnp.log(jnp.array([[0.5, 0.3, 0.2]] * 3))
    proposal = Proposal(jnp.array([0, 0]), jnp.int32(2), None, jnp.bool_(False))
    at = jnp.log(jnp.array([0.49, 0.51]))
    n_accepted, token = apply(verify_token, log_p, proposal, at, jnp.array([9.0, 0.0, 0.0]))
    assert (int(n_accepted), int(token)) == (1, 1)
