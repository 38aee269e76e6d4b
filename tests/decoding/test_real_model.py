"""Float32 text of the default model, greedy and coupled: the same bits with every draft at equal shapes."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model, Ngram, NoDraft
from specjax.models import ModelConfig, Transformer
from specjax.models.feed import feed
from specjax.sampling import Noise
from specjax.testing import perturbed

NEW, TOP_P, SEED = 64, 0.95, 5
NEAR_TIE = 1e-3  # logits of one text in two float32 shapes differ by some 1e-5; a fault differs by whole nats


def chat_ids(lm, path, count):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [row.get("prompt") or row["turns"][0] for row in rows]
    step = max(len(texts) // count, 1)
    return [ids for ids in map(lm.encode_chat, texts[::step]) if len(ids) <= 512][:count]


def batches(prompts, size):
    """Prompts as (tokens int32[size, P], lengths int32[size]); the last ones come twice to fill a batch."""
    width = -(-max(map(len, prompts)) // 64) * 64
    for first in range(0, len(prompts), size):
        rows = (prompts[first : first + size] + prompts[:size])[:size]
        tokens = np.zeros((size, width), np.int32)
        for row, ids in zip(tokens, rows, strict=True):
            row[: len(ids)] = ids
        yield tokens, np.array([len(ids) for ids in rows], np.int32)


def first_layers(model, count):
    """A model of the first layers alone: a poor draft that shares the vocabulary."""
    small = nnx.merge(*nnx.split(model))
    small.layers = nnx.List(list(small.layers)[:count])
    small.config = dataclasses.replace(model.config, num_layers=count)
    return small


def draft_of(name, model):
    return {
        "ngram": lambda: Ngram(),
        "perturbed": lambda: Model(perturbed(model, 0.02)),
        "layers": lambda: Model(first_layers(model, 2)),
    }[name]()


def logits_after(model, text):
    """Logits float64[V] of the next token, by teacher forcing."""
    tokens = jnp.asarray([text], jnp.int32)
    stop = jnp.array([len(text) - 1])
    cache = feed(
        model, model.init_cache(1, len(text) + 128), tokens, start=jnp.array([0]), stop=stop, chunk=128
    )
    hidden, _, _ = model(tokens[:, -1:], stop[:, None], cache)
    return np.asarray(model.logits(hidden)[0, 0], np.float64)


def greedy_margin(model, text, left, right):
    """How far apart the logits of two tokens are after a text."""
    logits = logits_after(model, text)
    return abs(logits[left] - logits[right])


def coupled_margin(model, text, left, right, *, seed, temperature, top_p):
    """By how much the law would have to move for the other token to be drawn with the same noise.

    In nats, as the perturbed log-probabilities of the two differ, or, for a token at the border of the
    nucleus, as the probability above it differs from top-p.
    """
    logits = logits_after(model, text) / temperature
    law = np.exp(logits - logits.max())
    law /= law.sum()
    noise = Noise.of_round(jnp.uint32(seed), jnp.int32(0), jnp.int32(len(text)), shared=True)
    gumbel = np.asarray(noise.position_gumbel(0, len(law), jnp.float32), np.float64)
    borders = [abs(law[law > law[token]].sum() - top_p) for token in (left, right)]
    return min(*borders, abs(logits[left] + gumbel[left] - logits[right] - gumbel[right]))


@pytest.fixture(scope="module")
def plain_texts(smollm2):
    """Results of plain decoding, by batches, batch size and width: all drafts are compared with the same."""
    results = {}

    def decode(prompts, batch, width, sampling):
        key = (len(prompts), batch, width, sampling)
        if key not in results:
            results[key] = decode_all(smollm2, NoDraft(width=width), width, prompts, batch, sampling)
        return results[key]

    return decode


def decode_all(lm, draft, gamma, prompts, batch, sampling=None):
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, rule="coupled")
    decoder = specjax.Decoder(lm.model, draft, config)
    return [
        jax.device_get(decoder.generate(*arrays, sampling=sampling and sampling(batch)))
        for arrays in batches(prompts, batch)
    ]


@pytest.mark.slow
def test_greedy_text_of_real_prompts(smollm2, prompt_file, plain_texts):
    check_texts(smollm2, chat_ids(smollm2, prompt_file, 2), plain_texts, "ngram", gamma=4, batch=2)


def coupled_sampling(batch):
    """Temperatures from 0.5 to 1.5 with top-p."""
    temperature = np.linspace(0.5, 1.5, batch) if batch > 1 else [1.0]
    return specjax.Sampling(temperature=temperature, top_p=TOP_P, seed=SEED)


EVERY_CELL = (
    pytest.mark.slow,
    pytest.mark.parametrize("draft", ("ngram", "perturbed", "layers")),
    pytest.mark.parametrize("gamma", (1, 2, 4, 8)),
    pytest.mark.parametrize("batch", (1, 8)),
)


def every_cell(test):
    return functools.reduce(lambda test, mark: mark(test), reversed(EVERY_CELL), test)


@every_cell
def test_greedy_text_of_many_prompts(smollm2, prompt_file, plain_texts, draft, gamma, batch):
    check_texts(smollm2, chat_ids(smollm2, prompt_file, 20), plain_texts, draft, gamma, batch)


@every_cell
def test_coupled_text_of_many_prompts(smollm2, prompt_file, plain_texts, draft, gamma, batch):
    prompts = chat_ids(smollm2, prompt_file, 20)
    check_texts(smollm2, prompts, plain_texts, draft, gamma, batch, coupled_sampling)


def check_texts(lm, prompts, plain_texts, draft, gamma, batch, sampling=None):
    """Equal to plain decoding's at equal width; at width one, that the first difference is a near-tie."""
    speculative = decode_all(lm, draft_of(draft, lm.model), gamma, prompts, batch, sampling)
    equal_width, fastest = (plain_texts(prompts, batch, width, sampling) for width in (gamma, 0))
    settings = sampling and sampling(batch)
    for (tokens, lengths), out, plain, other in zip(
        batches(prompts, batch), speculative, equal_width, fastest, strict=True
    ):
        np.testing.assert_array_equal(out.tokens, plain.tokens)
        np.testing.assert_array_equal(out.finish_reasons, plain.finish_reasons)
        assert not np.any(out.violations)
        for row in range(batch):
            differs = np.flatnonzero(other.tokens[row] != plain.tokens[row])
            if len(differs):
                at = differs[0]
                text = [*tokens[row, : lengths[row]], *other.tokens[row, :at]]
                pair = other.tokens[row, at], plain.tokens[row, at]
                if settings is None:
                    margin = greedy_margin(lm.model, text, *pair)
                else:
                    law = {"temperature": settings.temperature[row], "top_p": TOP_P, "seed": SEED + row}
                    margin = coupled_margin(lm.model, text, *pair, **law)
                assert margin < NEAR_TIE
    assert draft == "layers" or any(np.any(out.stats.accepted) for out in speculative)


@pytest.mark.slow
def test_a_long_context_of_the_real_model(smollm2):
    rng = np.random.default_rng(0)
    # 2,000 tokens with repetitions, so that n-grams match and the text goes on copying.
    piece = rng.integers(1000, 40000, 250)
    ids = np.tile(piece, 8).astype(np.int32)[None]
    lengths = np.array([ids.shape[1]], np.int32)

    def run(draft):
        config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4)
        return specjax.generate(smollm2.model, ids, lengths, draft=draft, config=config)

    out, plain = run(Ngram()), run(NoDraft(width=4))
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert np.sum(out.stats.accepted) > 0


@pytest.mark.slow
def test_a_context_of_4000_tokens_of_a_tiny_model():
    config = ModelConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        context_length=8192,
    )
    target = Transformer(config, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 64, (3, 4000)).astype(np.int32)
    lengths = np.array([4000, 513, 2048], np.int32)

    def run(draft, gamma=4):
        config = specjax.DecodeConfig(max_new_tokens=200, gamma=gamma, debug=True)
        return specjax.generate(target, tokens, lengths, draft=draft, config=config)

    plain = run(NoDraft(width=4))
    for draft in (Ngram(), Model(target), Model(perturbed(target, 0.3))):
        np.testing.assert_array_equal(run(draft).tokens, plain.tokens)
