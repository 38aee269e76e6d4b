"""Broken variants of the shipped code, each of which a check must catch at every seed.

A mutant is put in at a seam: a function, method or rule of the library is replaced by one that wraps it. No
body is copied, so a mutant cannot fall behind the code. `MUTANTS` says which check catches which.
"""

import dataclasses
import functools
import importlib
import types

import jax
import jax.numpy as jnp
import pytest

from specjax.decoding import decoder, loop
from specjax.decoding import round as rounds
from specjax.decoding.config import FinishReason
from specjax.decoding.program import Program
from specjax.drafts import Model, protocol
from specjax.sampling import Noise, Pipeline, pipeline
from specjax.verify import RULES, block, token
from tests.exactness import checks
from tests.exactness.checks import CHECKS, TEMPERATURE
from tests.exactness.test_exactness import SEEDS

verify_module = importlib.import_module("specjax.verify.verify")  # its package has a function of that name


def replaced(owner, name, around):
    """A mutant: the attribute becomes `around(attribute)`."""
    return lambda patch: patch.setattr(owner, name, around(getattr(owner, name)))


def replaced_rule(name, around):
    """A mutant: the function of a rule becomes `around(function)`."""
    rule = RULES[name]
    return lambda patch: patch.setitem(RULES, name, dataclasses.replace(rule, apply=around(rule.apply)))


def with_laws(change):
    """A rule that is told other laws: `change(log_p, log_q)`."""

    def around(rule):
        def mutant(log_p, proposal, noise):
            log_p, log_q = change(log_p, proposal.log_q)
            return rule(log_p, dataclasses.replace(proposal, log_q=log_q), noise)

        return mutant

    return around


def with_proposal(change):
    """A draft whose proposal is changed afterwards."""

    def around(propose):
        def mutant(self, module, carry, context):
            proposal, carry = propose(self, module, carry, context)
            return change(proposal), carry

        return mutant

    return around


def with_round(change):
    """A round whose new state is `change(old, new)`."""

    def around(decode_round):
        def mutant(program, target, draft_module, state):
            return change(state, decode_round(program, target, draft_module, state))

        return mutant

    return around


def with_jnp(**functions):
    """The `jax.numpy` of a module with some functions replaced."""
    return lambda jnp: types.SimpleNamespace(**vars(jnp) | functions)


def noise_with(noise, log_u):
    """The noise with other uniform numbers."""
    return types.SimpleNamespace(
        accept_log_uniform=lambda slots, dtype: log_u, replacement_gumbel=noise.replacement_gumbel
    )


def all_of(*mutants):
    return lambda patch: [mutant(patch) for mutant in mutants]


# Rules.


def shift_to_the_largest(log_p, log_q):
    return (x - jnp.max(x, axis=-1, keepdims=True) for x in (log_p, log_q))


def exclude_what_the_draft_excludes(log_p, log_q):
    return log_p.at[:-1].set(jnp.where(log_q == -jnp.inf, -jnp.inf, log_p[:-1])), log_q


def take_the_bonus_from_the_row_before(log_p, log_q):
    return log_p.at[-1].set(log_p[-2]), log_q


def verify_the_last_alone(rule):
    def mutant(log_p, proposal, noise):
        slots = jnp.arange(len(proposal.tokens))
        log_u = noise.accept_log_uniform(len(slots), log_p.dtype)
        log_u = jnp.where(slots == proposal.live - 1, log_u, -jnp.inf)
        return rule(log_p, proposal, noise_with(noise, log_u))

    return mutant


def take_the_leaf_for_an_inner_prefix(rule):
    def mutant(log_p, proposal, noise):
        n_accepted, _ = rule(log_p, dataclasses.replace(proposal, live=proposal.live + 1), noise)
        last = jnp.minimum(n_accepted, proposal.live) - 1
        log_u = jnp.where(jnp.arange(len(proposal.tokens)) == last, -jnp.inf, jnp.inf)
        return rule(log_p, proposal, noise_with(noise, log_u))

    return mutant


def draw_with_fresh_noise(rule):
    def mutant(log_p, proposal, noise):
        n_accepted, _ = rule(log_p, proposal, noise)
        gumbel = noise.replacement_gumbel(log_p.shape[1], log_p.dtype)
        return n_accepted, jnp.argmax(log_p[n_accepted] + gumbel).astype(jnp.int32)

    return mutant


def add_epsilon(ratios):
    def mutant(log_p, proposal):
        log_q = jnp.log(jnp.exp(proposal.log_q) + 1e-9)
        return ratios(log_p, dataclasses.replace(proposal, log_q=log_q))

    return mutant


def ratios_before_temperature(ratios):
    return lambda log_p, proposal: ratios(jax.nn.log_softmax(TEMPERATURE * log_p), proposal)


def swap_acceptance(ratios):
    """To accept where u >= ratio has the probability of u <= 1 - ratio."""
    return lambda *args: jnp.log1p(-jnp.exp(jnp.minimum(ratios(*args), 0.0)))


# Noise.


def at_position(self, slot, stream, draw):
    return draw(jax.random.fold_in(jax.random.fold_in(self.seed_key, self.position + slot), stream))


def proposals_by_position(_):
    return lambda self, slot, size, dtype: at_position(
        self, slot, 0, lambda key: jax.random.gumbel(key, (size,), dtype)
    )


def acceptance_by_position(_):
    def mutant(self, slots, dtype):
        def log_u(slot):
            return at_position(self, slot, 1, lambda key: jnp.log1p(-jax.random.uniform(key, (), dtype)))

        return jax.vmap(log_u)(jnp.arange(slots))

    return mutant


def key_by_row(of_round):
    return staticmethod(
        lambda seed, *args, **kwargs: of_round(
            seed + jnp.arange(len(seed), dtype=seed.dtype), *args, **kwargs
        )
    )


# Drafts.


def drop_failed_blocks(proposal):
    return dataclasses.replace(proposal, live=jnp.where(proposal.failed, 0, proposal.live))


def drop_unlikely_tokens(proposal):
    log_q = jnp.take_along_axis(proposal.log_q, proposal.tokens[..., None], axis=-1)[..., 0]
    confident = jnp.cumprod(log_q > jnp.log(0.4), axis=1, dtype=jnp.int32)
    return dataclasses.replace(proposal, live=jnp.minimum(proposal.live, jnp.sum(confident, axis=1)))


def flatten_the_law(draw):
    def mutant(*args, **kwargs):
        drawn = draw(*args, **kwargs)
        return dataclasses.replace(drawn, log_law=jax.nn.log_softmax(0.5 * drawn.log_law))

    return mutant


def count_the_last_draft_token(commit):
    """It was proposed, and never fed."""

    def mutant(self, module, carry, proposal, accepted, new_length):
        committed = commit(self, module, carry, proposal, accepted, new_length)
        return dataclasses.replace(committed, length=jnp.minimum(carry.length + accepted, new_length - 1))

    return mutant


def count_a_rejected_token(commit):
    def mutant(self, module, carry, proposal, accepted, new_length):
        committed = commit(self, module, carry, proposal, accepted, new_length)
        return dataclasses.replace(committed, length=committed.length + (accepted < proposal.live))

    return mutant


# Processing.


def process_with_one_state(_):
    return lambda self, rows, states, logits, drafted: jnp.stack(
        [self.process(rows, states, logits[:, slot]) for slot in range(logits.shape[1])], axis=1
    )


def advance_by_the_last_token(_):
    def mutant(self, states, tokens, count):
        last = jnp.take_along_axis(tokens, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        return self.advance(states, last, count > 0)

    return mutant


def filter_the_bonus_alone(log_law):
    def mutant(rows, processed):
        unfiltered = dataclasses.replace(rows, top_p=jnp.ones_like(rows.top_p))
        return jnp.concatenate(
            [log_law(unfiltered, processed[:, :-1]), log_law(rows, processed[:, -1:])], axis=1
        )

    return mutant


def threshold_before_temperature(threshold):
    return lambda logits, p: threshold(logits * TEMPERATURE, p) / TEMPERATURE


# Rounds.


def sample_greedy_rows(verify):
    return lambda rule, processed, log_p, greedy, *rest: verify(
        rule, processed, log_p, jnp.zeros_like(greedy), *rest
    )


def accept_as_the_slowest_row(verify):
    def mutant(rule, processed, log_p, greedy, proposal, noise):
        n_accepted, next_token = verify(rule, processed, log_p, greedy, proposal, noise)
        least = jnp.min(n_accepted)
        cut_off = proposal.tokens[:, jnp.minimum(least, proposal.tokens.shape[1] - 1)]
        return jnp.full_like(n_accepted, least), jnp.where(n_accepted > least, cut_off, next_token)

    return mutant


def keep_the_round(old, new):
    return dataclasses.replace(new, round=old.round)


def keep_a_token_too_many(old, new):
    return dataclasses.replace(new, cached_length=jnp.where(new.running, new.length, new.cached_length))


def look_for_eos_at_the_end(find_end):
    def mutant(stop, tokens, count, *rest):
        last = jnp.arange(tokens.shape[1]) == count[:, None] - 1
        return find_end(stop, jnp.where(last, tokens, -1), count, *rest)

    return mutant


def let_the_budget_win(find_end):
    def mutant(stop, tokens, count, history, generated):
        emitted, reason = find_end(stop, tokens, count, history, generated)
        used_up = generated + emitted >= stop.max_new_tokens
        return emitted, jnp.where(used_up, int(FinishReason.LENGTH), reason)

    return mutant


def leak_what_follows_the_end(cut):
    return lambda state, block, sound: (block, cut(state, block, sound)[1])


MUTANTS = {
    "residual from p alone": (
        "token rule",
        replaced(token, "log_residual", lambda _: lambda log_p, *_: log_p),
    ),
    "raw logits compared": ("token rule", replaced_rule("token", with_laws(shift_to_the_largest))),
    "target zeroed where the draft is": (
        "token rule",
        replaced_rule("token", with_laws(exclude_what_the_draft_excludes)),
    ),
    "bonus token from the wrong row": (
        "token rule",
        replaced_rule("token", with_laws(take_the_bonus_from_the_row_before)),
    ),
    "only the last candidate verified": ("token rule", replaced_rule("token", verify_the_last_alone)),
    "epsilon in the ratio": ("token rule", replaced(token, "token_log_ratios", add_epsilon)),
    "accepts where it should reject": ("token rule", replaced(token, "token_log_ratios", swap_acceptance)),
    "early break": (
        "block rule",
        replaced(block, "jnp", with_jnp(max=lambda passed: jnp.sum(jnp.cumprod(passed > 0)))),
    ),
    "wrong leaf rule": ("block rule", replaced_rule("block", take_the_leaf_for_an_inner_prefix)),
    "residual (p - q)+ in the block rule": (
        "block rule",
        replaced(
            block, "log_residual", lambda real: lambda log_p, *rest: real(jax.nn.log_softmax(log_p), *rest)
        ),
    ),
    "ratio of unprocessed logits": (
        "block rule",
        replaced(block, "token_log_ratios", ratios_before_temperature),
    ),
    "noise shared by draft and residual": (
        "law",
        replaced(
            Noise,
            "replacement_gumbel",
            lambda _: lambda self, size, dtype: self.proposal_gumbel(0, size, dtype),
        ),
    ),
    "noise keyed by position": (
        "law",
        all_of(
            replaced(Noise, "proposal_gumbel", proposals_by_position),
            replaced(Noise, "accept_log_uniform", acceptance_by_position),
        ),
    ),
    "round counter stands still": ("law", replaced(loop, "decode_round", with_round(keep_the_round))),
    "q of another temperature": ("law", replaced(protocol, "draw", flatten_the_law)),
    "failed block dropped as a whole": ("law", replaced(Model, "propose", with_proposal(drop_failed_blocks))),
    "unlikely tokens not proposed": ("law", replaced(Model, "propose", with_proposal(drop_unlikely_tokens))),
    "filters on the bonus token alone": ("coupled", replaced(rounds, "log_law", filter_the_bonus_alone)),
    "top-p before temperature": (
        "coupled",
        replaced(pipeline, "top_p_threshold", threshold_before_temperature),
    ),
    "drafts kept after a rejection": (
        "greedy",
        replaced(verify_module, "jnp", with_jnp(cumprod=lambda x, axis, dtype: x.astype(dtype))),
    ),
    "p/q test on greedy rows": ("greedy", replaced(rounds, "verify", sample_greedy_rows)),
    "penalties not advanced along the draft": (
        "greedy",
        replaced(Pipeline, "process_block", process_with_one_state),
    ),
    "penalties advanced by one token a round": (
        "greedy",
        replaced(Pipeline, "advance_block", advance_by_the_last_token),
    ),
    "EOS looked for at the end of a block": ("greedy", replaced(rounds, "find_end", look_for_eos_at_the_end)),
    "budget before EOS": ("greedy", replaced(rounds, "find_end", let_the_budget_win)),
    "tokens leak after the end": ("greedy", replaced(rounds, "_cut", leak_what_follows_the_end)),
    "write clamped at the capacity": (
        "greedy",
        replaced(Program, "cache_capacity", lambda _: property(lambda program: program.capacity)),
    ),
    "coupled rule draws with fresh noise": ("coupled", replaced_rule("coupled", draw_with_fresh_noise)),
    "noise keyed by batch row": ("neighbours", replaced(Noise, "of_round", key_by_row)),
    "acceptance of the slowest row": ("neighbours", replaced(rounds, "verify", accept_as_the_slowest_row)),
    "hole in the draft's cache after full acceptance": (
        "self draft",
        replaced(Model, "commit", count_the_last_draft_token),
    ),
    "coupled draft with noise of its own": (
        "self draft",
        lambda patch: patch.setitem(
            RULES, "coupled", dataclasses.replace(RULES["coupled"], shares_noise=False)
        ),
    ),
    "rejected token kept in the draft's cache": ("caches", replaced(Model, "commit", count_a_rejected_token)),
    "rejected token kept in the target's cache": (
        "caches",
        replaced(loop, "decode_round", with_round(keep_a_token_too_many)),
    ),
}


@pytest.fixture
def patch(monkeypatch):
    """A monkeypatch under which nothing is compiled yet: kept programs would not see what is replaced."""
    for owner, name in ((decoder, "_programs"), (checks, "rule_under_test")):
        monkeypatch.setattr(owner, name, functools.lru_cache(getattr(owner, name).__wrapped__))
    return monkeypatch


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_at_every_seed(name, patch):
    check, inject = MUTANTS[name]
    inject(patch)
    for seed in SEEDS:
        with pytest.raises(AssertionError) as caught:
            CHECKS[check](seed)
        assert "[Chex]" not in str(caught.value)  # an assertion of the library, about shapes


def test_every_check_catches_something():
    """A check that cannot fail is no check."""
    assert {check for check, _ in MUTANTS.values()} == set(CHECKS)
