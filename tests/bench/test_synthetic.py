"""Synthetic acceptance accepts at the given rates, does all the work of a real round, and is out of reach."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.bench.synthetic import LABEL, SyntheticDecoder, SyntheticRule
from specjax.drafts import Model, Proposal
from specjax.models import Transformer
from specjax.sampling import Noise
from specjax.testing import TableLM
from specjax.verify import RULES, verify_token
from tests.tiny_llama import CONFIG as LLAMA

VOCAB, GAMMA, BATCH, NEW = 12, 3, 64, 128
RATES = (0.9, 0.6, 0.3)
TARGET, DRAFT = TableLM.random(VOCAB, seed=0), TableLM.random(VOCAB, seed=1)
CONFIG = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA)
SAMPLED = specjax.Sampling(temperature=1.0)
ENDLESS = specjax.Stop(eos_ids=[])
PROMPTS, LENGTHS = np.ones((BATCH, 4), np.int32), np.full(BATCH, 4)


def counted(rates):
    decoder = SyntheticDecoder(TARGET, Model(DRAFT), CONFIG, rates=rates)
    out = decoder.generate(PROMPTS, LENGTHS, sampling=SAMPLED, stop=ENDLESS)
    np.testing.assert_array_equal(out.lengths, NEW)
    return jax.device_get(out.stats)


def test_counters_match_the_rates():
    stats = counted(RATES)
    live, accepted = stats.drafted_at.sum(axis=0), stats.accepted_at.sum(axis=0)
    # The last rounds of a row propose less than gamma; nothing else does.
    assert np.all(stats.rounds.sum() - live <= GAMMA * BATCH)
    expected = np.cumprod(RATES)
    error = np.sqrt(expected * (1 - expected) / live)
    np.testing.assert_array_less(np.abs(accepted / live - expected), 5 * error)


def test_certain_rates_and_what_is_not_live():
    """Certain tokens are accepted as far as they are live; the next token has the target's own law."""
    log_p = jnp.log(jnp.array([[0.7, 0.3, 0.0], [0.0, 0.2, 0.8], [0.0, 1.0, 0.0]]))
    rule = SyntheticRule((1.0, 0.0), verify_token)

    def applied(live, seed):
        proposal = Proposal(jnp.zeros(2, jnp.int32), live, log_q=None, failed=jnp.bool_(False))
        return rule(log_p, proposal, Noise.of_round(seed, jnp.int32(0), jnp.int32(5)))

    live = jnp.tile(jnp.arange(3, dtype=jnp.int32), 500)
    seeds = jnp.arange(1500, dtype=jnp.uint32)
    n_accepted, tokens = jax.device_get(jax.jit(jax.vmap(applied))(live, seeds))
    np.testing.assert_array_equal(n_accepted, np.minimum(live, 1))
    assert set(tokens[n_accepted == 0]) == {0, 1}
    assert set(tokens[n_accepted == 1]) == {1, 2}


def test_the_work_of_a_real_round_is_done():
    """By the compiler's own count, and with all weights of both models read."""
    shallow = dataclasses.replace(LLAMA, num_layers=1)
    target, draft = (Transformer(shallow, rngs=nnx.Rngs(seed)) for seed in (0, 1))

    def flops(decoder):
        arguments = decoder._arguments(PROMPTS[:2], LENGTHS[:2], SAMPLED, None, ENDLESS)
        programs = decoder._compiled(PROMPTS.shape[1])
        state = jax.eval_shape(programs.start, decoder._weights, *arguments)
        run = programs.run.lower(decoder._weights, state, jnp.int32(1)).compile()
        return run.cost_analysis()["flops"]

    real = flops(specjax.Decoder(target, Model(draft), CONFIG))
    synthetic = flops(SyntheticDecoder(target, Model(draft), CONFIG, rates=RATES))
    assert real <= synthetic < 1.05 * real


def test_no_configuration_reaches_it():
    assert "synthetic" not in RULES
    with pytest.raises(ValueError, match="rule is 'synthetic'"):
        specjax.DecodeConfig(rule="synthetic")
    assert not hasattr(specjax, "SyntheticDecoder")
    assert LABEL.startswith("synthetic acceptance")


def test_programs_are_not_shared_with_real_decoders():
    """Compiled programs are kept by what they were built from, so the rule must tell them apart."""
    real = specjax.Decoder(TARGET, Model(DRAFT), CONFIG)._program(64)
    programs = [SyntheticDecoder(TARGET, Model(DRAFT), CONFIG, rates=r)._program(64) for r in (RATES, RATES)]
    other = SyntheticDecoder(TARGET, Model(DRAFT), CONFIG, rates=(0.0, *RATES[1:]))._program(64)
    assert len({real, *programs, other}) == 3
    assert real.for_admission() == programs[0].for_admission()


@pytest.mark.parametrize("rates", ((0.5, 0.5), (0.5, 0.5, 1.1), ()))
def test_rates_that_make_no_sense(rates):
    with pytest.raises(ValueError, match="expected 3 probabilities"):
        SyntheticDecoder(TARGET, Model(DRAFT), CONFIG, rates=rates)


def test_greedy_rows_are_refused():
    decoder = SyntheticDecoder(TARGET, Model(DRAFT), CONFIG, rates=RATES)
    mixed = specjax.Sampling(temperature=[1.0] * (BATCH - 1) + [0.0])
    with pytest.raises(ValueError, match=f"temperature is 0 in row {BATCH - 1}"):
        decoder.start(PROMPTS, LENGTHS, sampling=mixed)
