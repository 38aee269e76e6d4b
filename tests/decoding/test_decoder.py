"""One compile serves; the same round through every way of calling it."""

import dataclasses
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.drafts import Model, Ngram
from specjax.models.transformer import Transformer
from specjax.testing import TableLM, count_compiles
from tests.tiny_llama import CONFIG as LLAMA

VOCAB, BATCH, WIDTH, NEW = 12, 4, 8, 16
TARGET = TableLM.random(VOCAB, seed=0)
DRAFT = TableLM.random(VOCAB, seed=1)
CONFIG = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3)


def prompts(seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCAB, (BATCH, WIDTH)).astype(np.int32), rng.integers(1, WIDTH + 1, BATCH)


def assert_same(left, right):
    np.testing.assert_array_equal(left.tokens, right.tokens)
    np.testing.assert_array_equal(left.lengths, right.lengths)
    np.testing.assert_array_equal(left.finish_reasons, right.finish_reasons)
    jax.tree.map(np.testing.assert_array_equal, left.stats, right.stats)


@pytest.mark.smoke
def test_one_compile_serves_every_value():
    calls = [
        {},
        {"sampling": specjax.Sampling(temperature=1.0, seed=3)},
        {"sampling": specjax.Sampling(temperature=[0, 0.5, 1, 2], top_k=3, top_p=0.8, min_p=0.01)},
        {"sampling": specjax.Sampling(repetition_penalty=1.3, presence_penalty=[0, 1, 0, 1])},
        {"sampling": specjax.Sampling(frequency_penalty=0.2, logit_bias={3: 1.0}, banned_tokens=[1, 2])},
        {"sampling": specjax.Sampling(min_new_tokens=5), "stop": specjax.Stop(eos_ids=[4, 5, 6])},
        {"draft_sampling": specjax.Sampling(temperature=0.7)},
        {"stop": specjax.Stop(eos_ids=[[1], [2], [], [3, 4]], sequences=[[5, 6], [7]])},
        {"stop": specjax.Stop(max_new_tokens=[0, 1, 7, NEW])},
    ]

    def call(index, **kwargs):
        return specjax.generate(TARGET, *prompts(index), draft=Model(DRAFT), config=CONFIG, **kwargs)

    for kwargs in calls:  # small operations that make arrays of the arguments
        specjax.decoding.decoder.make_request(
            BATCH, CONFIG, VOCAB, kwargs.get("sampling"), kwargs.get("draft_sampling"), kwargs.get("stop"), ()
        )
    jax.block_until_ready(call(0))
    with count_compiles() as compiles:
        outs = [call(index, **kwargs) for index, kwargs in enumerate(calls)]
        jax.block_until_ready(outs)
    assert compiles.count == 0
    patterns = {tuple(np.asarray(out.stats.accepted)) for out in outs}
    assert len(patterns) > 4  # so other patterns of acceptance were among them

    wider = specjax.DecodeConfig(max_new_tokens=NEW, gamma=2)
    with count_compiles() as compiles:
        specjax.generate(TARGET, *prompts(), draft=Model(DRAFT), config=wider)
    assert compiles.count > 0  # the counter counts


def test_compile_leaves_nothing_to_compile():
    decoder = specjax.Decoder(TARGET, Ngram(), CONFIG)
    stop = specjax.Stop(eos_ids=[3])
    specjax.decoding.decoder.make_request(BATCH, CONFIG, VOCAB, None, None, stop, ())
    decoder.compile(BATCH, WIDTH)
    with count_compiles() as compiles:
        decoder.generate(*prompts(), stop=stop)
        jax.block_until_ready(decoder.run_rounds(decoder.start(*prompts(), stop=stop)))
    assert compiles.count == 0


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_rounds_in_pieces_equal_one_run(temperature):
    sampling = specjax.Sampling(temperature=temperature, seed=5)
    decoder = specjax.Decoder(TARGET, Model(DRAFT), CONFIG)
    whole = decoder.generate(*prompts(), sampling=sampling)
    state = decoder.start(*prompts(), sampling=sampling)
    for rounds in (1, 2, 3, None):
        state = decoder.run_rounds(state, rounds)
    assert_same(decoder.result(state), whole)


def test_stream_yields_every_token_once():
    sampling = specjax.Sampling(temperature=1.0, seed=5)
    decoder = specjax.Decoder(TARGET, Model(DRAFT), CONFIG)
    whole = decoder.generate(*prompts(), sampling=sampling)
    updates = list(decoder.stream(*prompts(), sampling=sampling, rounds=2))
    assert len(updates) > 2
    for row in range(BATCH):
        streamed = np.concatenate([update.tokens[row] for update in updates])
        np.testing.assert_array_equal(streamed, whole.tokens[row, : whole.lengths[row]])
    np.testing.assert_array_equal(updates[-1].finish_reasons, whole.finish_reasons)


def test_inside_the_callers_own_jit():
    tokens, lengths = prompts()
    graphdef, weights = nnx.split((TARGET, DRAFT))

    @jax.jit
    def mine(weights, tokens, lengths, temperature, eos):
        target, draft = nnx.merge(graphdef, weights)
        sampling, stop = specjax.Sampling(temperature=temperature, seed=2), specjax.Stop(eos_ids=eos)
        shared = {"draft": Model(draft), "config": CONFIG, "sampling": sampling, "stop": stop}
        return specjax.decode(target, tokens, lengths, **shared), specjax.generate(
            target, tokens, lengths, **shared
        )

    pure, jitted = mine(weights, jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32), 0.8, jnp.array([3, 7]))
    outside = specjax.generate(
        TARGET,
        tokens,
        lengths,
        draft=Model(DRAFT),
        config=CONFIG,
        sampling=specjax.Sampling(temperature=0.8, seed=2),
        stop=specjax.Stop(eos_ids=[3, 7]),
    )
    assert_same(pure, outside)
    assert_same(jitted, outside)


@pytest.mark.parametrize(
    "draft",
    (
        pytest.param(Model(DRAFT), id="model"),
        pytest.param(Ngram(), id="ngram", marks=pytest.mark.slow),
    ),
)
def test_a_conversation_goes_on_where_it_stopped(draft):
    """Extending a state gives what a fresh start with the whole text gives; rows with nothing new stay."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, capacity=64, debug=True)
    decoder = specjax.Decoder(TARGET, draft, config)
    tokens, lengths = prompts()
    stop = specjax.Stop(eos_ids=[5])
    first = decoder.run_rounds(decoder.start(tokens, lengths, stop=stop))
    before = decoder.result(first)
    texts = [np.asarray(first.tokens)[row, : first.length[row]] for row in range(BATCH)]

    added = np.array([[1, 2, 3], [4, 0, 0], [0, 0, 0], [2, 2, 0]], np.int32)
    added_lengths = np.array([3, 1, 0, 2], np.int32)
    state = decoder.extend(first, added, added_lengths, stop=stop)
    out = decoder.result(decoder.run_rounds(state))

    whole = np.zeros((BATCH, 48), np.int32)
    for row in range(BATCH):
        text = np.concatenate([texts[row], added[row, : added_lengths[row]]])
        whole[row, : len(text)] = text
    whole_lengths = np.array([len(text) for text in texts]) + added_lengths
    fresh = decoder.generate(whole, whole_lengths.astype(np.int32), stop=stop)
    for row in (0, 1, 3):
        np.testing.assert_array_equal(out.tokens[row], fresh.tokens[row])
        assert out.lengths[row] == fresh.lengths[row]
    np.testing.assert_array_equal(out.tokens[2], before.tokens[2])
    assert out.finish_reasons[2] == before.finish_reasons[2]


def test_a_cancelled_row_is_used_again():
    """Nothing of what it was about to propose is left: extended, it says what its text alone makes it say."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, capacity=64, debug=True)
    decoder = specjax.Decoder(TARGET, Model(DRAFT), config)
    stop = specjax.Stop(eos_ids=[])
    whole = decoder.result(decoder.run_rounds(decoder.start(*prompts(), stop=stop)))

    cancelled = np.arange(BATCH) == 1
    state = decoder.run_rounds(decoder.start(*prompts(), stop=stop), 2)
    reasons = jnp.where(cancelled, int(specjax.FinishReason.CANCELLED), state.finish_reason)
    state = decoder.run_rounds(dataclasses.replace(state, finish_reason=reasons), 1)
    text = np.asarray(state.tokens)[1, : state.length[1]]
    state = decoder.extend(state, np.tile([[7, 3, 0]], (BATCH, 1)), 2 * cancelled, stop=stop)
    out = decoder.result(decoder.run_rounds(state))

    fresh = np.zeros((BATCH, 48), np.int32)
    fresh[1, : len(text) + 2] = [*text, 7, 3]
    expected = decoder.generate(fresh, np.where(cancelled, len(text) + 2, 1), stop=stop)
    for found, clean, rest in zip(*map(jax.tree.leaves, (out, expected, whole)), strict=True):
        np.testing.assert_array_equal(found[1], clean[1])
        np.testing.assert_array_equal(found[~cancelled], rest[~cancelled])


def test_calls_leave_nothing_behind():
    """Neither arrays nor programs, whatever is called and however often."""
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, capacity=64, debug=True)
    decoder = specjax.Decoder(TARGET, Ngram(), config)

    def use(seed):
        sampling = specjax.Sampling(temperature=[0.0, 1.0, 0.0, 1.0], seed=seed)
        state = decoder.run_rounds(decoder.start(*prompts(seed), sampling=sampling), 2)
        state = decoder.extend(decoder.run_rounds(state), np.ones((BATCH, 3), np.int32), [3, 0, 1, 2])
        list(decoder.stream_state(state, rounds=3))
        gc.collect()
        return len(jax.live_arrays())

    use(0)
    arrays = use(1)
    with count_compiles() as compiles:
        assert [use(seed) for seed in range(2, 8)] == [arrays] * 6
    assert compiles.count == 0


@pytest.mark.slow
def test_memory_of_a_round_grows_with_gamma_as_its_logits_do():
    """A few arrays of B (gamma + 1) V numbers at a time: logits, the laws of target and draft, residuals."""
    vocab_size, gamma = 4096, 8
    shape = dataclasses.replace(LLAMA, vocab_size=vocab_size, num_layers=1)
    target, draft = (Transformer(shape, rngs=nnx.Rngs(seed)) for seed in range(2))
    decoder = specjax.Decoder(target, Model(draft), dataclasses.replace(CONFIG, gamma=gamma))
    state = jax.eval_shape(lambda: decoder.start(*prompts()))
    run = decoder._compiled_for(state).run.lower(decoder._weights, state, np.int32(1))
    logits = 4 * BATCH * (gamma + 1) * vocab_size
    assert run.compile().memory_analysis().temp_size_in_bytes < 7 * logits


def test_extending_beyond_the_capacity_is_refused():
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, capacity=30)
    decoder = specjax.Decoder(TARGET, Ngram(), config)
    state = decoder.run_rounds(decoder.start(*prompts()))
    with pytest.raises(ValueError, match="capacity of 30"):
        decoder.extend(state, np.ones((BATCH, 4), np.int32), np.full(BATCH, 4, np.int32))


def test_a_processor_of_the_callers_own_is_exact_under_speculation():
    @dataclasses.dataclass(frozen=True)
    class NeverTwice:
        """A token may not follow itself."""

        def init(self, prompt, length, vocab_size):
            return prompt[length - 1]

        def apply(self, state, logits):
            return logits.at[state].set(-jnp.inf)

        def advance(self, state, token):
            return token

    def run(draft):
        return specjax.generate(TARGET, *prompts(), draft=draft, config=CONFIG, processors=(NeverTwice(),))

    plain, speculative = run(specjax.drafts.NoDraft(width=3)), run(Model(TARGET))
    text = np.asarray(plain.tokens)
    assert (text[:, 1:] != text[:, :-1]).all()
    np.testing.assert_array_equal(speculative.tokens, plain.tokens)
    np.testing.assert_array_equal(speculative.stats.accepted, speculative.stats.drafted)
    free = specjax.generate(TARGET, *prompts(), config=CONFIG)
    assert not np.array_equal(free.tokens, plain.tokens)


def test_extending_asks_for_the_rows_of_the_state_and_keeps_its_settings():
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=3, capacity=40)
    decoder = specjax.Decoder(TARGET, Ngram(), config)
    sampling, stop = specjax.Sampling(temperature=0.9, seed=5), specjax.Stop(max_new_tokens=[4, 4, 4, NEW])
    state = decoder.run_rounds(decoder.start(*prompts(), sampling=sampling, stop=stop))
    with pytest.raises(ValueError, match="new_prompt_tokens has 1 rows; expected 4"):
        decoder.extend(state, np.ones((1, 2), np.int32), [2])
    # Row 3 has no room for its budget again, and is not asked to.
    extended = decoder.extend(state, np.ones((BATCH, 12), np.int32), [12, 2, 2, 0])
    np.testing.assert_allclose(extended.request.sampling.temperature, 0.9)
    np.testing.assert_array_equal(extended.request.seed, [5, 6, 7, 8])
    np.testing.assert_array_equal(extended.request.stop.max_new_tokens, [4, 4, 4, NEW])
