"""Caches hold the committed text after every round, and one that does not is named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model
from specjax.models.transformer import Transformer
from specjax.testing import CacheMismatchError, check_caches, perturbed
from tests.drafts.test_model import Recurrent
from tests.tiny_llama import CONFIG

BATCH, WIDTH = 4, 8
TARGET = Transformer(CONFIG, rngs=nnx.Rngs(0))
DRAFT = Model(perturbed(TARGET, 0.3))
PROMPTS = np.random.default_rng(0).integers(0, 6, (BATCH, WIDTH)).astype(np.int32)
LENGTHS = np.array([8, 1, 5, 2], np.int32)
DECODER = specjax.Decoder(TARGET, DRAFT, specjax.DecodeConfig(max_new_tokens=24, gamma=3))
SAMPLING = specjax.Sampling(temperature=np.array([0.0, 1.0, 0.0, 1.0]), seed=2)


def after(rounds):
    return DECODER.run_rounds(DECODER.start(PROMPTS, LENGTHS, sampling=SAMPLING), rounds)


def fill(cache, place, key, value):
    """Every key and value of the slots where bool[B, S] `place` says so."""
    width = cache.layers[0].shape[3] // 2
    entry = jnp.repeat(jnp.array([key, value]), width)
    at = place[:, None, :, None]
    return dataclasses.replace(cache, layers=tuple(jnp.where(at, entry, layer) for layer in cache.layers))


def slots_of(cache):
    return jnp.arange(cache.layers[0].shape[2])


def test_caches_hold_the_text_after_every_round():
    state, rounds = DECODER.start(PROMPTS, LENGTHS, sampling=SAMPLING), 0
    while np.any(state.running):
        check_caches(TARGET, state, draft=DRAFT)
        state, rounds = DECODER.run_rounds(state, 1), rounds + 1
    check_caches(TARGET, state, draft=DRAFT)
    assert 0 < np.sum(state.stats.accepted) < np.sum(state.stats.drafted)
    assert rounds > 6


@pytest.mark.parametrize("back", (1, 5))
def test_a_changed_entry_below_the_length_is_noticed(back):
    state = after(3)
    row_2 = (jnp.arange(BATCH) == 2)[:, None]
    slot = slots_of(state.cache) == state.cached_length[:, None] - back
    broken = dataclasses.replace(state, cache=fill(state.cache, row_2 & slot, 0.5, 0.5))
    with pytest.raises(CacheMismatchError, match="the target's cache of row 2, with"):
        check_caches(TARGET, broken)

    slot = slots_of(state.draft.cache) == state.draft.length[:, None] - back
    carry = dataclasses.replace(state.draft, cache=fill(state.draft.cache, row_2 & slot, 0.5, 0.5))
    broken = dataclasses.replace(state, draft=carry)
    check_caches(TARGET, broken)
    with pytest.raises(CacheMismatchError, match="the draft's cache of row 2, with"):
        check_caches(TARGET, broken, draft=DRAFT)


def test_a_length_that_is_off_by_one_is_noticed():
    state = after(3)
    for change in (-1, 1):
        wrong = dataclasses.replace(state, cached_length=state.cached_length.at[1].add(change))
        with pytest.raises(CacheMismatchError, match="the target's cache of row 1 holds"):
            check_caches(TARGET, wrong)
    ahead = dataclasses.replace(state.draft, length=state.length)
    with pytest.raises(CacheMismatchError, match="the draft's cache of row 0 holds"):
        check_caches(TARGET, dataclasses.replace(state, draft=ahead), draft=DRAFT)
    behind = dataclasses.replace(state.draft, length=state.draft.length - 1)
    check_caches(TARGET, dataclasses.replace(state, draft=behind), draft=DRAFT)


def test_what_lies_beyond_the_length_does_not_matter():
    state = after(3)
    beyond = slots_of(state.cache) >= state.cached_length[:, None]
    beyond_draft = slots_of(state.draft.cache) >= state.draft.length[:, None]
    poisoned = dataclasses.replace(
        state,
        cache=fill(state.cache, beyond, jnp.nan, 1e30),
        draft=dataclasses.replace(state.draft, cache=fill(state.draft.cache, beyond_draft, jnp.nan, 1e30)),
    )
    clean, dirty = (check_caches(TARGET, state, draft=DRAFT) for state in (state, poisoned))
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


def test_caches_that_are_no_attention_and_rows_that_end_with_an_error():
    target, draft = Recurrent(fails_at=10), Model(Recurrent())
    decoder = specjax.Decoder(target, draft, specjax.DecodeConfig(max_new_tokens=24, gamma=3))
    state = decoder.run_rounds(decoder.start(PROMPTS, LENGTHS), 1)
    differences = check_caches(target, state, draft=draft)
    assert {name: found.shape for name, found in differences.items()} == {
        "target": (BATCH,),
        "draft": (BATCH,),
    }
    with pytest.raises(CacheMismatchError, match="target's cache of row 1"):
        check_caches(target, dataclasses.replace(state, cache=state.cache + 1))
    # The first row has ended with an error, which passes whatever its cache holds; in the end all rows have.
    state = decoder.run_rounds(state)
    check_caches(target, dataclasses.replace(state, cache=state.cache + 1))
