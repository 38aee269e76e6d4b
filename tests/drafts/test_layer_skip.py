"""Some of the target's layers as its draft: what they say, in its own cache, which stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import LayerSkip, Model, NoDraft
from specjax.models import Transformer
from specjax.testing import LayeredTableLM, TableLM
from tests.tiny_llama import CONFIG

GAMMA, NEW, BATCH, WIDTH, VOCAB = 3, 24, 4, 7, 7
PROMPTS = np.random.default_rng(0).integers(0, VOCAB, (BATCH, WIDTH)).astype(np.int32)
LENGTHS = np.array([7, 1, 4, 6], np.int32)
SAMPLING = specjax.Sampling(temperature=[0.0, 0.5, 1.0, 2.0], seed=1)
TABLES = np.random.default_rng(1).normal(size=(2, VOCAB, VOCAB, VOCAB)).astype(np.float32) * 1.5


class Unpositioned(LayeredTableLM):
    """As a recurrent model's, its cache has to be told how much was accepted."""

    positional_cache = False

    def __call__(self, tokens, positions, cache, **settings):
        hidden, tapped, pending = super().__call__(tokens, positions, cache, **settings)
        return hidden, tapped, (pending, tokens, positions)

    def commit(self, cache, pending, lengths, count):
        _, tokens, positions = pending
        kept = jnp.arange(tokens.shape[1]) < count[:, None]
        places = jnp.where(kept, positions, cache.shape[1])
        return cache.at[np.arange(len(cache))[:, None], places].set(tokens, mode="drop")


@pytest.mark.parametrize(
    "target",
    (
        pytest.param(LayeredTableLM(TABLES), id="positional", marks=pytest.mark.slow),
        pytest.param(Unpositioned(TABLES), id="other"),
    ),
)
def test_all_layers_are_always_right(target):
    """Whatever the block, each slot follows the tokens before it; under shared noise both draw the same."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, rule="coupled", debug=True)
    out = specjax.generate(
        target, PROMPTS, LENGTHS, draft=LayerSkip((0, 1)), config=config, sampling=SAMPLING
    )
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, NEW // (GAMMA + 1))


def test_it_proposes_what_a_model_of_these_layers_would():
    """The same tokens from the same laws."""
    target = LayeredTableLM(TABLES)
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA)
    proposals = []
    for draft in (LayerSkip((1,)), Model(TableLM(TABLES[1]))):
        decoder = specjax.Decoder(target, draft, config)
        proposals.append(decoder.propose(decoder.start(PROMPTS, LENGTHS, sampling=SAMPLING)))
    jax.tree.map(np.testing.assert_array_equal, *proposals)


TARGET = Transformer(CONFIG, rngs=nnx.Rngs(0))


def test_the_targets_cache_stays_what_plain_decoding_makes_it():
    """Bit for bit: the draft reads it in every slot and leaves nothing in it."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, debug=True)
    states = []
    for draft in (LayerSkip.early_exit(1), NoDraft(width=GAMMA)):
        decoder = specjax.Decoder(TARGET, draft, config)
        states.append(decoder.run_rounds(decoder.start(PROMPTS, LENGTHS)))
    skipping, plain = states
    assert 0 < np.sum(skipping.stats.accepted) < np.sum(skipping.stats.drafted)
    np.testing.assert_array_equal(skipping.tokens, plain.tokens)
    for found, expected in zip(jax.tree.leaves(skipping.cache), jax.tree.leaves(plain.cache), strict=True):
        for row, length in enumerate(np.asarray(plain.cached_length)):
            np.testing.assert_array_equal(found[row, :, :length], expected[row, :, :length])


def test_it_adds_no_memory():
    """No weights, no state, and no copy of the cache that the slots read."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, capacity=2000)
    decoder = specjax.Decoder(TARGET, LayerSkip((0, 1)), config)
    assert len(jax.tree.leaves(decoder._weights)) == len(jax.tree.leaves(nnx.state(TARGET)))
    arguments = decoder._arguments(PROMPTS, LENGTHS, None, None, None)
    state = jax.eval_shape(decoder._compiled(WIDTH).start, decoder._weights, *arguments)
    assert jax.tree.leaves(state.draft) == []
    memory = decoder.lower_rounds(state).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * state.cache.layers[0].size


@pytest.mark.parametrize("layers", ((), (0, 0), (-1,), [0], 2))
def test_what_are_no_layers_is_refused(layers):
    with pytest.raises(ValueError, match=r"LayerSkip.layers is .*; expected a tuple of different layer"):
        LayerSkip(layers)


def test_a_target_without_these_layers_is_refused_by_name():
    with pytest.raises(ValueError, match="LayerSkip needs a target whose layers can be named, but TableLM"):
        specjax.Decoder(TableLM(TABLES[0]), LayerSkip((0,)))
    with pytest.raises(ValueError, match=r"LayerSkip.layers is \(2,\); expected indices below 2 for Transf"):
        specjax.generate(TARGET, PROMPTS, LENGTHS, draft=LayerSkip((2,)))
