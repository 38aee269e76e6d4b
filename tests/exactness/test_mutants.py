"""Broken variants of the shipped code, each of which a check must catch at every seed.

A mutant replaces a function, a method or a rule of the library by one that wraps it. No body is copied, so
that no mutant falls behind the code. `MUTANTS` says which check catches which. All mutants of a check are
compiled into one program, which asks the host as it runs which of them is active; only rules, which are quick
to compile and would ask too often, are compiled for each.
"""

import dataclasses
import functools
import importlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding import loop
from specjax.decoding import round as rounds
from specjax.decoding.config import FinishReason
from specjax.decoding.state import where_rows
from specjax.drafts import Fallback, Model, fallback, protocol
from specjax.sampling import Noise, Pipeline, pipeline
from specjax.testing import TableLM
from specjax.verify import RULES, block, token
from tests.exactness import checks
from tests.exactness.checks import CHECKS, GAMMA, TEMPERATURE
from tests.exactness.test_exactness import SEEDS

greedy_module = importlib.import_module("specjax.verify.verify")  # its package has a function of that name

# Rules. A mutant is given what it replaces, then the arguments.


def ignore_q(residual, log_p, log_q, token):
    return log_p


def normalise_p(residual, log_p, *rest):
    """Undoes the factor r of the block rule."""
    return residual(jax.nn.log_softmax(log_p), *rest)


def add_epsilon(log_ratios, log_p, proposal):
    log_q = jnp.log(jnp.exp(proposal.log_q) + 1e-9)
    return log_ratios(log_p, dataclasses.replace(proposal, log_q=log_q))


def leave_temperature_out(log_ratios, log_p, proposal):
    return log_ratios(jax.nn.log_softmax(TEMPERATURE * log_p), proposal)


def accept_every_draft_token(log_ratios, log_p, proposal):
    return jnp.zeros_like(log_ratios(log_p, proposal))


def swap_acceptance(log_ratios, log_p, proposal):
    """u >= ratio is as likely as u <= 1 - ratio."""
    return jnp.log1p(-jnp.exp(jnp.minimum(log_ratios(log_p, proposal), 0.0)))


def compare_logits(rule, log_p, proposal, noise):
    """Logits whose largest is 0, in the place of probabilities."""
    p, q = (x - jnp.max(x, axis=-1, keepdims=True) for x in (log_p, proposal.log_q))
    return rule(p, dataclasses.replace(proposal, log_q=q), noise)


def exclude_what_the_draft_excludes(rule, log_p, proposal, noise):
    excluded = proposal.log_q == -jnp.inf
    return rule(log_p.at[:-1].set(jnp.where(excluded, -jnp.inf, log_p[:-1])), proposal, noise)


def draw_the_bonus_one_row_early(rule, log_p, proposal, noise):
    return rule(log_p.at[-1].set(log_p[-2]), proposal, noise)


def verify_the_last_token_alone(rule, log_p, proposal, noise):
    slots = jnp.arange(len(proposal.tokens))
    log_u = noise.accept_log_uniform(len(slots), log_p.dtype)
    return rule(log_p, proposal, noise_with(noise, jnp.where(slots == proposal.live - 1, log_u, -jnp.inf)))


def break_at_the_first_failure(rule, log_p, proposal, noise):
    slots = jnp.arange(len(proposal.tokens))
    log_u = noise.accept_log_uniform(len(slots), log_p.dtype)

    def passes_alone(slot):
        return rule(log_p, proposal, noise_with(noise, jnp.where(slots == slot, log_u, jnp.inf)))[0] > slot

    n_accepted = jnp.sum(jnp.cumprod(jax.vmap(passes_alone)(slots)))
    return rule_that_accepts(n_accepted, rule, log_p, proposal, noise)


def take_the_leaf_for_an_inner_prefix(rule, log_p, proposal, noise):
    n_accepted, _ = rule(log_p, dataclasses.replace(proposal, live=proposal.live + 1), noise)
    return rule_that_accepts(jnp.minimum(n_accepted, proposal.live), rule, log_p, proposal, noise)


def draw_with_fresh_noise(rule, log_p, proposal, noise):
    n_accepted, _ = rule(log_p, proposal, noise)
    gumbel = noise.replacement_gumbel(log_p.shape[1], log_p.dtype)
    return n_accepted, jnp.argmax(log_p[n_accepted] + gumbel).astype(jnp.int32)


def noise_with(noise, log_u):
    """The noise with other uniform numbers."""
    return types.SimpleNamespace(
        accept_log_uniform=lambda slots, dtype: log_u, replacement_gumbel=noise.replacement_gumbel
    )


def rule_that_accepts(n_accepted, rule, log_p, proposal, noise):
    """The block rule with uniform numbers of which exactly that prefix passes."""
    passes = jnp.arange(len(proposal.tokens)) == n_accepted - 1
    return rule(log_p, proposal, noise_with(noise, jnp.where(passes, -jnp.inf, jnp.inf)))


# Noise.


def take_the_drafts_noise(replacement_gumbel, noise, size, dtype):
    return noise.proposal_gumbel(0, size, dtype)


def key_proposals_by_position(proposal_gumbel, noise, slot, size, dtype):
    return jax.random.gumbel(position_key(noise, slot, 0), (size,), dtype)


def key_acceptance_by_position(accept_log_uniform, noise, slots, dtype):
    keys = jax.vmap(lambda slot: position_key(noise, slot, 1))(jnp.arange(slots))
    return jnp.log1p(-jax.vmap(lambda key: jax.random.uniform(key, (), dtype))(keys))


def position_key(noise, slot, stream):
    return jax.random.fold_in(jax.random.fold_in(noise.seed_key, noise.position + slot), stream)


def key_by_row(of_round, seed, *args, **kwargs):
    return of_round(seed + jnp.arange(len(seed), dtype=seed.dtype), *args, **kwargs)


def do_not_share(proposal_gumbel, noise, *args):
    return proposal_gumbel(dataclasses.replace(noise, shared=False), *args)


# Drafts.


def flatten_the_law(draw, *args, **kwargs):
    drawn = draw(*args, **kwargs)
    return dataclasses.replace(drawn, log_law=jax.nn.log_softmax(0.5 * drawn.log_law))


def propose_the_likeliest(draw, *args, **kwargs):
    drawn = draw(*args, **kwargs)
    return dataclasses.replace(drawn, tokens=jnp.argmax(drawn.log_law, axis=-1).astype(jnp.int32))


def believe_in_the_token_drawn(draw, *args, **kwargs):
    """A policy then stops at an unlikely token, not at a law that is unsure."""
    drawn = draw(*args, **kwargs)
    belief = jnp.take_along_axis(drawn.log_law, drawn.tokens[:, None], axis=-1)
    return dataclasses.replace(drawn, belief=jnp.broadcast_to(belief, drawn.belief.shape))


def fall_back_after_sampling(propose, draft, module, carry, context):
    """Takes what the model drew where that is likely, though the search has found something."""
    proposal, new = propose(draft, module, carry, context)
    second, _ = draft.second.propose(module[1], carry.second, context)
    log_q = jnp.take_along_axis(second.log_q[:, 0], second.tokens[:, :1], axis=-1)[:, 0]
    return where_rows(log_q > jnp.log(0.5), second, proposal), new


def take_the_models_law(certain, tokens, law):
    """For tokens that the model has not drawn."""
    return law


def drop_failed_blocks(propose, *args):
    proposal, carry = propose(*args)
    return dataclasses.replace(proposal, live=jnp.where(proposal.failed, 0, proposal.live)), carry


def drop_unlikely_tokens(propose, *args):
    proposal, carry = propose(*args)
    log_q = jnp.take_along_axis(proposal.log_q, proposal.tokens[..., None], axis=-1)[..., 0]
    confident = jnp.sum(jnp.cumprod(log_q > jnp.log(0.4), axis=1, dtype=jnp.int32), axis=1)
    return dataclasses.replace(proposal, live=jnp.minimum(proposal.live, confident)), carry


def count_the_last_draft_token(commit, draft, module, carry, proposal, outcome):
    """It was proposed, but never fed."""
    length = jnp.minimum(carry.length + outcome.accepted, outcome.length - 1)
    return dataclasses.replace(carry, length=length)


def count_a_rejected_token(commit, draft, module, carry, proposal, outcome):
    committed = commit(draft, module, carry, proposal, outcome)
    return dataclasses.replace(committed, length=committed.length + (outcome.accepted < proposal.live))


# Processing.


def process_with_one_state(process_block, pipeline, rows, states, logits, drafted):
    slots = range(logits.shape[1])
    return jnp.stack([pipeline.process(rows, states, logits[:, slot]) for slot in slots], axis=1)


def advance_by_the_last_token(advance_block, pipeline, states, tokens, count):
    last = jnp.take_along_axis(tokens, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    return pipeline.advance(states, last, count > 0)


def filter_the_bonus_alone(log_law, rows, processed):
    unfiltered = dataclasses.replace(rows, top_p=jnp.ones_like(rows.top_p))
    laws = log_law(unfiltered, processed[:, :-1]), log_law(rows, processed[:, -1:])
    return jnp.concatenate(laws, axis=1)


def filter_before_temperature(threshold, logits, p):
    return threshold(logits * TEMPERATURE, p) / TEMPERATURE


# Rounds.


def accept_every_token(verify_greedy, processed, proposal):
    likeliest = jnp.argmax(processed, axis=-1).astype(jnp.int32)[:, :-1]
    return verify_greedy(processed, dataclasses.replace(proposal, tokens=likeliest))


def sample_greedy_rows(verify, rule, processed, log_p, greedy, *rest):
    return verify(rule, processed, log_p, jnp.zeros_like(greedy), *rest)


def accept_as_the_slowest_row(verify, rule, processed, log_p, greedy, proposal, noise):
    n_accepted, next_token = verify(rule, processed, log_p, greedy, proposal, noise)
    least = jnp.min(n_accepted)
    cut_off = proposal.tokens[:, jnp.minimum(least, proposal.tokens.shape[1] - 1)]
    return jnp.full_like(n_accepted, least), jnp.where(n_accepted > least, cut_off, next_token)


def look_for_eos_at_the_end(find_end, stop, tokens, count, *rest):
    last = jnp.arange(tokens.shape[1]) == count[:, None] - 1
    return find_end(stop, jnp.where(last, tokens, -1), count, *rest)


def let_the_budget_win(find_end, stop, tokens, count, history, generated):
    emitted, reason = find_end(stop, tokens, count, history, generated)
    used_up = generated + emitted >= stop.max_new_tokens
    return emitted, jnp.where(used_up, int(FinishReason.LENGTH), reason)


def leak_what_follows_the_end(find_end, stop, tokens, count, *rest):
    return count, find_end(stop, tokens, count, *rest)[1]


def keep_the_round(decode_round, program, target, draft_module, state):
    return dataclasses.replace(decode_round(program, target, draft_module, state), round=state.round)


def keep_a_token_too_many(decode_round, *args):
    new = decode_round(*args)
    return dataclasses.replace(new, cached_length=jnp.where(new.running, new.length, new.cached_length))


def write_without_slack(call, model, tokens, positions, cache, **kwargs):
    """JAX clamps a write that reaches beyond the last slot."""
    slack = GAMMA + 1
    hidden, tapped, pending = call(model, tokens, positions, cache[:, :-slack], **kwargs)
    return hidden, tapped, jnp.pad(pending, ((0, 0), (0, slack)))


def write_where_the_first_row_does(call, model, tokens, positions, cache, **kwargs):
    return call(model, tokens, jnp.broadcast_to(positions[:1], positions.shape), cache, **kwargs)


# Check, then the mutants that it must catch: name, and what is replaced where.
MUTANTS = {
    "token rule": {
        "residual from p alone": [(token, "log_residual", ignore_q)],
        "raw logits compared": [(RULES, "token", compare_logits)],
        "target zeroed where the draft is": [(RULES, "token", exclude_what_the_draft_excludes)],
        "bonus token from the wrong row": [(RULES, "token", draw_the_bonus_one_row_early)],
        "only the last candidate verified": [(RULES, "token", verify_the_last_token_alone)],
        "epsilon in the ratio": [(token, "token_log_ratios", add_epsilon)],
        "accepts whatever is proposed": [(token, "token_log_ratios", accept_every_draft_token)],
        "accepts where it should reject": [(token, "token_log_ratios", swap_acceptance)],
    },
    "block rule": {
        "early break": [(RULES, "block", break_at_the_first_failure)],
        "wrong leaf rule": [(RULES, "block", take_the_leaf_for_an_inner_prefix)],
        "residual (p - q)+": [(block, "log_residual", normalise_p)],
        "ratio of unprocessed logits": [(block, "token_log_ratios", leave_temperature_out)],
    },
    "law": {
        "noise shared by draft and residual": [(Noise, "replacement_gumbel", take_the_drafts_noise)],
        "noise keyed by position": [
            (Noise, "proposal_gumbel", key_proposals_by_position),
            (Noise, "accept_log_uniform", key_acceptance_by_position),
        ],
        "round counter stands still": [(loop, "decode_round", keep_the_round)],
        "q of another temperature": [(protocol, "draw", flatten_the_law)],
        "greedy draft with the q of a sampled one": [(protocol, "draw", propose_the_likeliest)],
        "failed block dropped as a whole": [(Model, "propose", drop_failed_blocks)],
        "unlikely tokens not proposed": [(Model, "propose", drop_unlikely_tokens)],
    },
    "mixed drafts": {
        "policy that looks at the token drawn": [(protocol, "draw", believe_in_the_token_drawn)],
        "fallback decided after sampling": [(Fallback, "propose", fall_back_after_sampling)],
        "law of the other draft": [(fallback, "_certain", take_the_models_law)],
    },
    "greedy": {
        "drafts kept after a rejection": [(greedy_module, "verify_greedy", accept_every_token)],
        "p/q test on greedy rows": [(rounds, "verify", sample_greedy_rows)],
        "penalties not advanced along the draft": [(Pipeline, "process_block", process_with_one_state)],
        "penalties advanced by one token a round": [(Pipeline, "advance_block", advance_by_the_last_token)],
        "EOS looked for at the end of a block": [(rounds, "find_end", look_for_eos_at_the_end)],
        "budget before EOS": [(rounds, "find_end", let_the_budget_win)],
        "tokens leak after the end": [(rounds, "find_end", leak_what_follows_the_end)],
        "write clamped at the capacity": [(TableLM, "__call__", write_without_slack)],
        "one cache offset for all rows": [(TableLM, "__call__", write_where_the_first_row_does)],
    },
    "coupled": {
        "draws with fresh noise": [(RULES, "coupled", draw_with_fresh_noise)],
        "filters on the bonus token alone": [(rounds, "log_law", filter_the_bonus_alone)],
        "top-p before temperature": [(pipeline, "top_p_threshold", filter_before_temperature)],
    },
    "neighbours": {
        "noise keyed by batch row": [(Noise, "of_round", key_by_row)],
        "acceptance of the slowest row": [(rounds, "verify", accept_as_the_slowest_row)],
    },
    "self draft": {
        "hole in the draft's cache": [(Model, "commit", count_the_last_draft_token)],
        "coupled draft with noise of its own": [(Noise, "proposal_gumbel", do_not_share)],
    },
    "caches": {
        "rejected token kept in the draft's": [(Model, "commit", count_a_rejected_token)],
        "rejected token kept in the target's": [(loop, "decode_round", keep_a_token_too_many)],
    },
}


class Active:
    """The number of the active mutant of a check; 0 is none."""

    number = 0


def either(number, mutant, real, *, when_traced):
    """`mutant(real, ...)` as long as its number is the active one, else `real(...)`.

    Args:
        when_traced: whether to look at the number once, when the program is traced, or whenever it runs.
    """

    def once_for_all(*args):
        return mutant(real, *args) if Active.number == number else real(*args)

    def whenever_it_runs(*args, **kwargs):
        honest = real(*args, **kwargs)

        def known(*again, **same):
            """Most mutants ask for what was just computed: a whole round would be compiled twice."""
            alike = len(again) == len(args) and all(a is b for a, b in zip(again, args, strict=True))
            return honest if alike and same == kwargs else real(*again, **same)

        broken = mutant(known, *args, **kwargs)
        active = jax.pure_callback(
            lambda: np.bool_(Active.number == number), jax.ShapeDtypeStruct((), np.bool_)
        )
        return jax.tree.map(lambda broken, honest: jnp.where(active, broken, honest), broken, honest)

    return once_for_all if when_traced else whenever_it_runs


def inject(patch, number, owner, name, mutant, **when):
    if owner is RULES:
        rule = RULES[name]
        patch.setitem(
            RULES, name, dataclasses.replace(rule, apply=either(number, mutant, rule.apply, **when))
        )
    else:
        patch.setattr(owner, name, either(number, mutant, getattr(owner, name), **when))


def fails(check, seed):
    try:
        check(seed)
    except AssertionError as error:
        if "[Chex]" in str(error):  # found by the library, about shapes
            raise
        return True
    return False


@pytest.mark.parametrize("check", CHECKS)
def test_every_mutant_is_caught_at_every_seed(check, monkeypatch, fresh_programs):
    """And with none of them active the check passes."""
    mutants = MUTANTS[check]
    for number, seams in enumerate(mutants.values(), 1):
        for owner, name, mutant in seams:
            inject(monkeypatch, number, owner, name, mutant, when_traced=check.endswith("rule"))
    caught = {}
    for number, name in enumerate(("none", *mutants)):
        monkeypatch.setattr(Active, "number", number)
        monkeypatch.setattr(checks, "rule_under_test", functools.cache(checks.rule_under_test.__wrapped__))
        caught[name] = [seed for seed in SEEDS if fails(CHECKS[check], seed)]
    assert caught == {"none": []} | {name: list(SEEDS) for name in mutants}


def test_every_check_catches_something():
    """A check that cannot fail is no check."""
    assert set(MUTANTS) == set(CHECKS)
    assert all(MUTANTS.values())
