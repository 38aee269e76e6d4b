"""Rounds that score fewer tokens where the draft is short: the same text, and really fewer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax import power_widths
from specjax.decoding import admission
from specjax.decoding.arguments import make_request
from specjax.decoding.loop import run_rounds
from specjax.decoding.program import Program
from specjax.drafts import Model, Ngram, NoDraft
from specjax.models import Transformer
from specjax.testing import Oracle, TableLM, count_compiles, perturbed
from tests.drafts.test_model import Recurrent
from tests.tiny_llama import CONFIG

VOCAB, BATCH, NEW, GAMMA = 12, 4, 40, 8
TARGET = TableLM.random(VOCAB, seed=3, scale=2.5)
PROMPTS = np.random.default_rng(0).integers(0, 3, (BATCH, 10)).astype(np.int32)
LENGTHS = np.array([10, 1, 4, 7], np.int32)


def config(widths, gamma=GAMMA, **kwargs):
    return specjax.DecodeConfig(
        max_new_tokens=NEW, gamma=gamma, verify_widths=widths, debug=True, logprobs=True, **kwargs
    )


def run(widths, draft, **kwargs):
    return specjax.generate(TARGET, PROMPTS, LENGTHS, draft=draft, config=config(widths), **kwargs)


@pytest.mark.parametrize(
    "gamma, widths",
    ((0, ()), (1, ()), (2, (2,)), (4, (2, 3)), (5, (2, 3, 5)), (8, (2, 3, 5)), (9, (2, 3, 5, 9))),
)
def test_power_widths(gamma, widths):
    assert power_widths(gamma) == widths


class TellsWidth(nnx.Module):
    """Its greedy token is the number of tokens scored together."""

    positional_cache = True
    vocab_size, eos_ids = VOCAB, ()

    def init_cache(self, batch, capacity):
        return jnp.zeros((batch, capacity), jnp.int32)

    def __call__(self, tokens, positions, cache, *, taps=()):
        return jnp.broadcast_to(nnx.one_hot(tokens.shape[1], VOCAB), (*tokens.shape, VOCAB)), (), cache

    def commit(self, cache, pending, lengths, count):
        return pending

    def logits(self, hidden):
        return hidden.astype(jnp.float32)


def test_the_narrowest_width_that_holds_the_longest_proposal_is_scored():
    # A wrong first token each round, so that a round emits one token: the width it was scored with. Budgets
    # cut the proposals of the last rounds: 8 live tokens, ..., 1, none.
    script = Oracle.of(np.zeros((2, 30)), [1, 1], [99, 99])
    out = specjax.generate(
        TellsWidth(),
        np.zeros((2, 1), np.int32),
        [1, 1],
        draft=script,
        config=specjax.DecodeConfig(max_new_tokens=12, gamma=GAMMA, verify_widths=(2, 3, 5)),
        stop=specjax.Stop(max_new_tokens=[12, 3]),
    )
    np.testing.assert_array_equal(out.tokens[0], [9, 9, 9, 9, 9, 9, 9, 5, 5, 3, 2, 2])
    # The shorter row shares the width of the longer one.
    np.testing.assert_array_equal(out.tokens[1], [9, 9, 9] + [0] * 9)


@pytest.mark.parametrize(
    "draft",
    (
        pytest.param(Model(perturbed(TARGET, 0.5)), id="model"),
        pytest.param(NoDraft(width=GAMMA), id="none", marks=pytest.mark.slow),
    ),
)
def test_everything_but_the_time_is_as_with_one_width(draft):
    """A table model is not rounded differently, so sampled tokens and their noise are equal, too."""
    sampling = specjax.Sampling(temperature=[0.0, 0.7, 1.5, 0.0], top_p=0.9, repetition_penalty=1.2, seed=5)
    wide, narrow = run((), draft, sampling=sampling), run((2, 3, 5), draft, sampling=sampling)
    np.testing.assert_array_equal(narrow.tokens, wide.tokens)
    np.testing.assert_array_equal(narrow.finish_reasons, wide.finish_reasons)
    np.testing.assert_allclose(narrow.logprobs, wide.logprobs, rtol=1e-6)
    np.testing.assert_array_equal(narrow.stats.accepted_at, wide.stats.accepted_at)


def test_greedy_text_of_shorter_proposals():
    """With one width an n-gram draft proposes all it can."""
    wide, narrow = run((), Ngram()), run((2, 3, 5), Ngram())
    np.testing.assert_array_equal(narrow.tokens, wide.tokens)
    assert np.sum(narrow.stats.drafted) < np.sum(wide.stats.drafted)


@pytest.mark.slow
def test_a_conversation_at_the_edge_of_its_capacity():
    """Extended and run round by round, up to the last slot, with a width of one token among others."""

    def texts(widths):
        decoder = specjax.Decoder(TARGET, Ngram(), config(widths, capacity=10 + NEW + 3 + NEW))
        state = decoder.start(PROMPTS, LENGTHS)
        state = decoder.run_rounds(decoder.run_rounds(state, 3))
        first = np.asarray(decoder.result(state).tokens)
        state = decoder.extend(state, np.ones((BATCH, 3), np.int32), [3, 1, 0, 2])
        return first, np.asarray(decoder.result(decoder.run_rounds(state)).tokens)

    for narrow, wide in zip(texts((1, 2, 4)), texts(()), strict=True):
        np.testing.assert_array_equal(narrow, wide)


def test_switching_widths_copies_no_cache():
    target = Transformer(CONFIG, rngs=nnx.Rngs(0))
    graphdef, weights = nnx.split(target)
    settings = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4, verify_widths=(2, 3))
    program = Program.build(target, Ngram(), settings, 2000)

    def start(weights, prompts, lengths):
        request = make_request(BATCH, settings, CONFIG.vocab_size, None, None, None, ())
        return admission.start(program, nnx.merge(graphdef, weights), None, prompts, lengths, request)

    def run(state, weights):
        return run_rounds(program, nnx.merge(graphdef, weights), None, state)

    state = jax.eval_shape(start, weights, PROMPTS, LENGTHS)
    memory = jax.jit(run, donate_argnums=0).lower(state, weights).compile().memory_analysis()
    one_array = state.cache.layers[0].size * 4
    assert memory.temp_size_in_bytes < one_array


def test_one_compile_serves_all_widths():
    decoder = specjax.Decoder(TARGET, Ngram(), config((2, 3, 5)))
    decoder.generate(PROMPTS, LENGTHS)
    with count_compiles() as compiles:
        out = decoder.generate(np.zeros_like(PROMPTS), LENGTHS)
    assert compiles.count == 0
    assert np.all(np.sum(out.stats.drafted_at > 0, axis=1) == GAMMA)  # zeros repeat: full proposals


def test_a_target_whose_pending_cache_depends_on_the_width_is_refused():
    specjax.generate(Recurrent(), PROMPTS[:, :4] % 3, [4, 1, 4, 2], config=config((2,)))  # has one width
    with pytest.raises(ValueError, match=r"verify_widths is \(2,\), but the target does not say"):
        specjax.generate(Recurrent(), PROMPTS[:, :4] % 3, [4, 1, 4, 2], draft=Ngram(), config=config((2,)))
