"""Under the coupled rule sampled text depends on target, prompt and seed; the draft only sets the pace."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model, Ngram, NoDraft
from specjax.models.transformer import Transformer
from specjax.testing import perturbed
from tests.tiny_llama import CONFIG

NEW, BATCH, WIDTH = 32, 8, 10
TARGET = Transformer(CONFIG, rngs=nnx.Rngs(0))
DRAFTS = {
    "ngram": Ngram(),
    "self": Model(TARGET),
    "perturbed": Model(perturbed(TARGET, 0.3)),
    "wrong": Model(Transformer(dataclasses.replace(CONFIG, num_layers=1), rngs=nnx.Rngs(5))),
}
RNG = np.random.default_rng(0)
PROMPTS = RNG.integers(0, 6, (BATCH, WIDTH)).astype(np.int32)
LENGTHS = RNG.integers(1, WIDTH + 1, BATCH).astype(np.int32)
SAMPLING = specjax.Sampling(temperature=np.linspace(0.5, 1.5, BATCH), top_p=0.9, seed=11)


def run(draft, gamma, rows=slice(None), sampling=SAMPLING, **config):
    return specjax.generate(
        TARGET,
        PROMPTS[rows],
        LENGTHS[rows],
        draft=draft,
        config=specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, rule="coupled", debug=True, **config),
        sampling=sampling,
    )


@pytest.fixture(scope="module")
def plain():
    return run(NoDraft(), 0)


@pytest.mark.parametrize(
    "name, gamma",
    (
        ("perturbed", 4),
        *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("ngram", "self", "wrong")),
        *(pytest.param(name, gamma, marks=pytest.mark.slow) for name in DRAFTS for gamma in (1, 2, 8)),
    ),
)
def test_text_does_not_depend_on_the_draft(plain, name, gamma):
    out = run(DRAFTS[name], gamma)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    if name == "self":
        np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    else:
        assert 0 < np.sum(out.stats.accepted) < np.sum(out.stats.drafted)


def test_nor_on_the_widths_of_rounds(plain):
    np.testing.assert_array_equal(run(Ngram(), 8, verify_widths=(2, 3, 5)).tokens, plain.tokens)


@pytest.mark.slow
def test_nor_on_the_neighbours(plain):
    """A single seed means seed + row, so a row alone is given its own."""
    sampling = dataclasses.replace(SAMPLING, temperature=SAMPLING.temperature[5:6], seed=16)
    out = run(DRAFTS["perturbed"], 4, rows=slice(5, 6), sampling=sampling)
    np.testing.assert_array_equal(out.tokens[0], plain.tokens[5])


def test_but_on_the_seed(plain):
    other = run(NoDraft(), 0, sampling=dataclasses.replace(SAMPLING, seed=100))
    assert np.all(np.any(np.asarray(other.tokens) != np.asarray(plain.tokens), axis=1))


def test_the_other_rules_do_depend_on_the_draft(plain):
    """Or the tests above would show nothing."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4, rule="block")
    out = specjax.generate(
        TARGET, PROMPTS, LENGTHS, draft=DRAFTS["perturbed"], config=config, sampling=SAMPLING
    )
    assert np.any(np.asarray(out.tokens) != np.asarray(plain.tokens))
