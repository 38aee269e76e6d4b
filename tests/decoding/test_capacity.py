"""Rows at the edge of what they may hold, and caches whose unused slots are poisoned."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax import FinishReason, Stop
from specjax.drafts import Model, Ngram, NoDraft
from specjax.models import Transformer
from specjax.models.config import ModelConfig
from specjax.testing.table_lm import TableLM

VOCAB, CAPACITY, NEW = 5, 16, 12
TARGET = TableLM.random(VOCAB, seed=0)
TABLE = np.asarray(TARGET.table[...])
NEAR_TARGET = TableLM(TABLE + 0.5 * np.random.default_rng(1).normal(size=TABLE.shape).astype(np.float32))
# The shortest prompts with all the budget there is, and prompts that end at the capacity with theirs.
LENGTHS = np.array([1, 2, 4, 5, 9, 14, 15, 15], np.int32)
BUDGETS = np.array([12, 12, 12, 11, 7, 2, 1, 0])
PROMPTS = np.random.default_rng(2).integers(0, VOCAB, (8, CAPACITY - 1)).astype(np.int32)


def greedy_text(prompt, count):
    text = [0, *prompt]
    for _ in range(count):
        text.append(int(TABLE[text[-2], text[-1]].argmax()))
    return text[len(prompt) + 1 :]


@pytest.mark.parametrize(
    ("draft", "gamma"),
    (
        (NoDraft(), 0),
        (Ngram(), 4),
        (Model(NEAR_TARGET), 4),
        pytest.param(Model(NEAR_TARGET), 0, marks=pytest.mark.slow),
        pytest.param(Model(NEAR_TARGET), 1, marks=pytest.mark.slow),
        pytest.param(NoDraft(width=1), 1, marks=pytest.mark.slow),
        pytest.param(NoDraft(width=4), 4, marks=pytest.mark.slow),
        pytest.param(Ngram(), 0, marks=pytest.mark.slow),
        pytest.param(Ngram(), 1, marks=pytest.mark.slow),
    ),
    ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__,
)
def test_rows_may_fill_their_capacity_to_the_last_token(draft, gamma):
    """A write that JAX had to clamp would land on valid slots, and change the text."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, capacity=CAPACITY, debug=True)
    stop = Stop(max_new_tokens=BUDGETS)
    out = specjax.generate(TARGET, PROMPTS, LENGTHS, draft=draft, config=config, stop=stop)
    expected = np.zeros((len(BUDGETS), NEW), int)
    for row, (prompt, length, budget) in enumerate(zip(PROMPTS, LENGTHS, BUDGETS, strict=True)):
        expected[row, :budget] = greedy_text(prompt[:length], budget)
    np.testing.assert_array_equal(out.tokens, expected)
    np.testing.assert_array_equal(out.lengths, BUDGETS)
    np.testing.assert_array_equal(out.finish_reasons, FinishReason.LENGTH)
    assert (np.sum(out.stats.accepted) > 0) == (gamma > 0 and not isinstance(draft, NoDraft))


def transformer(seed, num_layers=2):
    config = ModelConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        tie_embeddings=True,
    )
    return Transformer(config, rngs=nnx.Rngs(seed))


def poisoned(cache, valid):
    """The cache with NaN keys and huge values in every slot from `valid` int32[B] on."""

    def fill(layer):
        junk = jnp.where(jnp.arange(layer.shape[3]) < layer.shape[3] // 2, jnp.nan, 1e30)
        used = jnp.arange(layer.shape[2]) < valid[:, None]
        return jnp.where(used[:, None, :, None], layer, junk)

    return jax.tree.map(fill, cache)


def poison(state):
    changes = {"cache": poisoned(state.cache, state.cached_length)}
    if hasattr(state.draft, "cache"):
        changes["draft"] = dataclasses.replace(
            state.draft, cache=poisoned(state.draft.cache, state.draft.length)
        )
    return dataclasses.replace(state, **changes)


POISON_LENGTHS = np.array([1, 2, 6, 9], np.int32)
POISON_PROMPTS = np.random.default_rng(3).integers(0, 6, (4, 9)).astype(np.int32)


# A draft that has the target's first layer and not its second is right now and then.
HALF = transformer(0, num_layers=1)
POISON_CONFIG = specjax.DecodeConfig(max_new_tokens=20, gamma=3, prefill_chunk=4)


@pytest.mark.parametrize(
    "draft",
    (
        Model(HALF),
        pytest.param(Model(transformer(0)), marks=pytest.mark.slow),
        pytest.param(Ngram(), marks=pytest.mark.slow),
    ),
    ids=("half", "self", "ngram"),
)
def test_slots_beyond_the_valid_length_are_never_read(draft):
    decoder = specjax.Decoder(transformer(0), draft, POISON_CONFIG)
    sampling = specjax.Sampling(temperature=np.array([0.0, 1.0, 0.0, 1.0]), seed=5)

    def run(before_round):
        state = decoder.start(POISON_PROMPTS, POISON_LENGTHS, sampling=sampling)
        while np.any(state.running):
            state = decoder.run_rounds(before_round(state), 1)
        return decoder.result(state)

    clean, dirty = run(lambda state: state), run(jax.jit(poison))
    np.testing.assert_array_equal(dirty.finish_reasons, FinishReason.LENGTH)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    assert np.sum(clean.stats.accepted) > 0


def test_poison_in_a_valid_slot_is_noticed():
    """The test above can fail: a slot too many, and the rows end with an error."""
    decoder = specjax.Decoder(transformer(0), Model(HALF), POISON_CONFIG)
    state = decoder.start(POISON_PROMPTS, POISON_LENGTHS)
    state = dataclasses.replace(state, cache=poisoned(state.cache, state.cached_length - 1))
    state = decoder.run_rounds(state, 1)
    # A row with a prompt of one token has nothing in its cache.
    np.testing.assert_array_equal(state.finish_reason == FinishReason.ERROR, POISON_LENGTHS > 1)
