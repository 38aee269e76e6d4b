"""Shapes of all public functions, without running any of them."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Fallback, LayerSkip, Model, Ngram, NoDraft, Recycling
from specjax.models.transformer import Transformer
from specjax.plan.abstract import abstract_model
from tests.tiny_llama import CONFIG

B, P, NEW, GAMMA = 3, 10, 7, 2
V = CONFIG.vocab_size
DECODING = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, logprobs=True)

TARGET = abstract_model(CONFIG, "float32")
DRAFTS = {
    "none": NoDraft(),
    "ngram": Ngram(),
    "model": Model(abstract_model(CONFIG, "float32")),
    "layers": LayerSkip((1,)),
    "either": Fallback(Recycling(), Model(abstract_model(CONFIG, "float32"))),
}


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def check_result(out, gamma):
    assert (out.tokens.shape, out.tokens.dtype) == ((B, NEW), jnp.int32)
    assert (out.logprobs.shape, out.logprobs.dtype) == ((B, NEW), jnp.float32)
    assert out.raw_logprobs.shape == (B, NEW)
    for rows in (out.lengths, out.finish_reasons, out.stats.rounds, out.stats.drafted, out.stats.emitted):
        assert (rows.shape, rows.dtype) == ((B,), jnp.int32)
    assert out.violations.dtype == jnp.uint32
    assert out.stats.drafted_at.shape == out.stats.accepted_at.shape == (B, gamma)


@pytest.mark.parametrize("kind", DRAFTS)
def test_decode(kind):
    draft = DRAFTS[kind]
    graphdef, weights = nnx.split((TARGET, draft.module))

    def decode(weights, prompts, lengths):
        target, module = nnx.merge(graphdef, weights)
        used = Model(module) if kind == "model" else draft
        if kind == "either":
            used = Fallback(draft.first, Model(module[1]))
        config = dataclasses.replace(DECODING, policy="adaptive" if kind == "either" else "entropy")
        return specjax.decode(target, prompts, lengths, draft=used, config=config)

    ints = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    check_result(jax.eval_shape(decode, weights, ints((B, P)), ints((B,))), draft.slots(GAMMA))


@pytest.mark.parametrize("kind", DRAFTS)
def test_the_programs_of_a_decoder(kind):
    decoder = specjax.Decoder(TARGET, DRAFTS[kind], DECODING)
    gamma = DRAFTS[kind].slots(GAMMA)
    arguments = decoder._arguments(np.ones((B, P), np.int32), np.ones(B, np.int32), None, None, None)
    programs, weights = decoder._compiled(P), decoder._weights
    state = jax.eval_shape(programs.start, weights, *arguments)
    assert state.tokens.shape == (B, P + NEW)
    assert shapes(jax.eval_shape(programs.run, weights, state, np.int32(1))) == shapes(state)
    assert shapes(jax.eval_shape(programs.extend, weights, state, *arguments)) == shapes(state)
    check_result(jax.eval_shape(programs.result, state), gamma)
    check_result(jax.eval_shape(programs.generate, weights, *arguments), gamma)
    scored = jax.eval_shape(programs.score, weights, state)
    assert scored.raw.shape == scored.processed.shape == scored.log_p.shape == (B, gamma + 1, V)
    assert scored.proposal.tokens.shape == (B, gamma)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model(dtype):
    graphdef, weights = nnx.split(abstract_model(CONFIG, dtype))

    def score(weights, tokens, positions):
        model: Transformer = nnx.merge(graphdef, weights)
        cache = model.init_cache(B, 32)
        hidden, tapped, pending = model(tokens, positions, cache, taps=(0,))
        lengths = positions[:, 0]
        kept = model.commit(cache, pending, lengths, jnp.ones_like(lengths))
        return hidden, tapped, model.logits(hidden), cache, kept

    block = jax.ShapeDtypeStruct((B, 4), jnp.int32)
    hidden, tapped, logits, cache, kept = jax.eval_shape(score, weights, block, block)
    assert (hidden.shape, hidden.dtype) == ((B, 4, CONFIG.hidden_size), dtype)
    assert [state.shape for state in tapped] == [hidden.shape]
    assert (logits.shape, logits.dtype) == ((B, 4, V), jnp.float32)
    assert shapes(cache) == shapes(kept)
