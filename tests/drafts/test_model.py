"""The model draft: caches that a length cannot roll back, and failures that heal."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model, NoDraft

VOCAB, BATCH, NEW = 11, 3, 40


class Recurrent(nnx.Module):
    """Logits depend on a running hash of every token fed; the state after each token is pending.

    Attributes:
        fails_at: position at which its logits are NaN.
    """

    def __init__(self, fails_at=-1):
        table = np.random.default_rng(0).normal(size=(97, VOCAB)) * 2
        self.table = nnx.Param(jnp.asarray(table, jnp.float32))
        self.vocab_size = VOCAB
        self.fails_at = fails_at

    def init_cache(self, batch, capacity):
        return jnp.ones(batch, jnp.int32)

    def __call__(self, tokens, positions, cache, *, taps=()):
        states = [cache]
        for slot in range(tokens.shape[1]):
            states.append((states[-1] * 31 + tokens[:, slot] + 7) % 97)
        states = jnp.stack(states, axis=1)
        fails = (positions == self.fails_at)[..., None]
        return jnp.where(fails, jnp.nan, self.table[...][states[:, 1:]]), (), states

    def commit(self, cache, pending, lengths, count):
        return jnp.take_along_axis(pending, count[:, None], axis=1)[:, 0]

    def logits(self, hidden):
        return hidden


PROMPTS = np.array([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]], np.int32)
LENGTHS = np.array([4, 2, 1], np.int32)


def run(target, draft):
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, debug=True)
    return specjax.generate(target, PROMPTS, LENGTHS, draft=draft, config=config)


def test_a_recurrent_draft_follows_the_text():
    plain, out = run(Recurrent(), NoDraft(width=3)), run(Recurrent(), Model(Recurrent()))
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, [10, 10, 10])


@pytest.mark.parametrize("position", (11, *(pytest.param(at, marks=pytest.mark.slow) for at in (10, 12, 13))))
def test_a_recurrent_draft_heals_after_a_failure(position):
    out = run(Recurrent(), Model(Recurrent(fails_at=position)))
    np.testing.assert_array_equal(out.tokens, run(Recurrent(), NoDraft(width=3)).tokens)
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    assert np.any(out.stats.draft_failures)


def test_a_failing_target_ends_its_rows_where_plain_decoding_does():
    plain = run(Recurrent(fails_at=12), NoDraft(width=3))
    out = run(Recurrent(fails_at=12), Model(Recurrent()))
    np.testing.assert_array_equal(plain.finish_reasons, [specjax.FinishReason.ERROR] * BATCH)
    np.testing.assert_array_equal(plain.lengths, 13 - LENGTHS)
    np.testing.assert_array_equal(out.finish_reasons, plain.finish_reasons)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.lengths, plain.lengths)


@pytest.mark.slow
def test_a_draft_derived_from_it_keeps_its_own_methods():
    class Silent(Model):
        def propose(self, module, carry, context):
            proposal, carry = super().propose(module, carry, context)
            return dataclasses.replace(proposal, live=jnp.zeros_like(proposal.live)), carry

    out = run(Recurrent(), Silent(Recurrent()))
    assert not np.any(out.stats.drafted)
