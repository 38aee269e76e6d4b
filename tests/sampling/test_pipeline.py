"""From raw logits to a law and a token: blocks, order of steps, draws."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import Noise, Pipeline, Sampling, draw, drawable, log_law, to_rows
from tests import reference

VOCAB, WIDTH = 6, 5
PROMPTS = jnp.pad(jnp.array([[1, 1, 2], [5, 0, 0], [3, 4, 0]], jnp.int32), ((0, 0), (0, 8)))
LENGTHS = jnp.array([3, 1, 2], jnp.int32)
# The first row repeats a token inside the block, the second one that its prompt has, the third an EOS id.
DRAFTED = np.array([[4, 4, 4, 0], [5, 2, 5, 5], [3, 0, 1, 3]], np.int32)
PENALTIES = (
    {"repetition_penalty": 1.7, "frequency_penalty": 0.6, "sequence_bias": {(4, 4): 5.0, (2, 4, 4): -3.0}},
    {
        "presence_penalty": 1.1,
        "logit_bias": {2: 3.0},
        "banned_tokens": [1],
        "banned_sequences": [[5, 2], [5, 5, 0]],
        "no_repeat_ngram_size": 2,
        "suppressed_first_tokens": [4],
    },
    {
        "repetition_penalty": 0.5,
        "frequency_penalty": -0.8,
        "min_new_tokens": 3,
        "no_repeat_ngram_size": 1,
        "forced_last_token": 2,
        "budget": 3,
    },
)
EOS = [0, 3]


@dataclasses.dataclass(frozen=True)
class Countdown:
    """A caller's processor with a state that counts the tokens it has seen."""

    def init(self, prompt, length, vocab_size):
        return length

    def apply(self, state, logits):
        return logits - 0.25 * state.astype(logits.dtype)

    def advance(self, state, token):
        return state + 1


def penalty_rows(settings=PENALTIES):
    numbers = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    whole = {
        "min_new_tokens": 0,
        "no_repeat_ngram_size": 0,
        "forced_first_token": -1,
        "forced_last_token": -1,
    }
    lists = ("banned_tokens", "banned_sequences", "suppressed_first_tokens")
    off = numbers | whole | {"logit_bias": {}, "sequence_bias": {}} | {name: [] for name in lists}
    columns = {name: [row.get(name, default) for row in settings] for name, default in off.items()}
    batch = len(settings)
    return to_rows(
        Sampling(**columns),
        batch,
        eos_ids=jnp.array([EOS] * batch, jnp.int32),
        max_new_tokens=jnp.array([row.get("budget", 99) for row in settings], jnp.int32),
        max_bias=4,
        max_bias_len=3,
    )


def raw_logits():
    return np.random.default_rng(0).normal(size=(3, WIDTH, VOCAB)).astype(np.float32) * 2


@jax.jit
def process_block(logits, drafted):
    pipeline = Pipeline(longest_bias=3)
    states = pipeline.init(PROMPTS, LENGTHS, VOCAB)
    return pipeline.process_block(penalty_rows(), states, logits, drafted)


def test_a_block_is_processed_as_if_token_by_token():
    raw = raw_logits()
    block = process_block(raw, DRAFTED)
    for row, settings in enumerate(PENALTIES):
        prompt = PROMPTS[row, : LENGTHS[row]].tolist()
        for position in range(WIDTH):
            output = DRAFTED[row, :position].tolist()
            expected = reference.process(raw[row, position], prompt, output, settings, EOS)
            np.testing.assert_allclose(block[row, position], expected, rtol=1e-5, atol=1e-5)


def test_a_position_does_not_see_the_draft_from_itself_on():
    changed = DRAFTED.copy()
    changed[:, 2:] = (changed[:, 2:] + 1) % VOCAB
    before, after = process_block(raw_logits(), DRAFTED), process_block(raw_logits(), changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.any(np.asarray(before[:, 3:]) != np.asarray(after[:, 3:]))


def test_advancing_by_a_part_of_a_block_equals_a_recount():
    pipeline = Pipeline(user=(Countdown(),), longest_bias=3)
    advance = jax.jit(pipeline.advance_block)
    states = pipeline.init(PROMPTS, LENGTHS, VOCAB)
    first, second = DRAFTED[:, :4], DRAFTED[:, ::-1]
    for counts in ([0, 1, 4], [4, 0, 2], [3, 2, 0]):
        once = advance(states, first, jnp.array(counts))
        recent, penalties, text, generated, seen = advance(once, second, jnp.array(counts[::-1]))
        for row in range(3):
            output = [*first[row, : counts[row]], *second[row, : counts[::-1][row]]]
            np.testing.assert_array_equal(penalties.in_output[row], np.bincount(output, minlength=VOCAB))
            prompt = np.asarray(PROMPTS[row, : LENGTHS[row]])
            np.testing.assert_array_equal(penalties.in_prompt[row], np.isin(np.arange(VOCAB), prompt))
            whole = [*prompt.tolist(), *output]
            np.testing.assert_array_equal(text.tokens[row, : text.length[row]], whole)
            np.testing.assert_array_equal(recent[row], [-1, *whole][-2:])
            assert generated[row] == len(output)
            assert seen[row] == len(prompt) + len(output)


def test_the_callers_processors_come_after_the_built_in_ones():
    @dataclasses.dataclass(frozen=True)
    class BestBecomesHopeless(Countdown):
        def apply(self, state, logits):
            return logits.at[jnp.argmax(logits)].add(-100.0)

    pipeline = Pipeline(user=(BestBecomesHopeless(),))
    rows = rows_of(Sampling(banned_tokens=[0]), 1)
    states = pipeline.init(PROMPTS[:1], LENGTHS[:1], 3)
    logits = pipeline.process(rows, states, jnp.array([[9.0, 5.0, 1.0]]))
    np.testing.assert_array_equal(logits, [[-np.inf, -95.0, 1.0]])


def rows_of(sampling, batch):
    eos_ids, budget = jnp.full((batch, 1), -1), jnp.full(batch, 99)
    return to_rows(sampling, batch, eos_ids=eos_ids, max_new_tokens=budget, max_bias=1)


FILTERS = (
    {"temperature": 0.6, "top_k": 3},
    {"temperature": 1.7, "top_p": 0.75},
    {"temperature": 1.0, "min_p": 0.25},
    # Each of these filters changes what the next one has to keep, so that their order shows.
    {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.6, "min_p": 0.4},
    {"temperature": 0.5, "top_k": 5, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.0},
)


def filter_rows(settings=FILTERS):
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    columns = {name: [row.get(name, default) for row in settings] for name, default in defaults.items()}
    return rows_of(Sampling(**columns), len(settings))


def test_temperature_and_filters_follow_one_another():
    logits = np.random.default_rng(1).normal(size=(len(FILTERS), 40, 12)).astype(np.float32) * 2
    laws = np.asarray(jax.jit(log_law)(filter_rows(), logits))
    for row, settings in enumerate(FILTERS):
        expected = np.array([reference.log_law(line.astype(np.float64), settings) for line in logits[row]])
        np.testing.assert_array_equal(laws[row] > -np.inf, expected > -np.inf)
        np.testing.assert_allclose(laws[row], expected, rtol=1e-5, atol=1e-5)


def test_filters_do_not_apply_to_greedy_rows():
    logits = np.random.default_rng(2).normal(size=(2, 12)).astype(np.float32)
    filters = {"top_k": 1, "top_p": 0.1, "min_p": 0.9}
    laws = log_law(filter_rows([{"temperature": 0.0, **filters}, {"temperature": 1.0, **filters}]), logits)
    np.testing.assert_array_equal(np.sum(np.asarray(laws) > -np.inf, axis=1), [12, 1])
    np.testing.assert_allclose(laws[0], jax.nn.log_softmax(logits[0]), rtol=1e-6)


def test_neighbours_do_not_change_a_law():
    """Filters are skipped when no row asks for them; that must not change the others' numbers."""
    logits = np.random.default_rng(3).normal(size=(len(FILTERS), 12)).astype(np.float32)
    law = jax.jit(log_law)
    mixed = law(filter_rows(), logits)
    for row, settings in enumerate(FILTERS):
        uniform = law(filter_rows([settings] * len(FILTERS)), logits)
        np.testing.assert_array_equal(uniform[row], mixed[row])


SEEDS = 4096


@jax.jit
def draw_many(rows, logits, law_needed):
    noise = Noise.of_round(
        jnp.arange(SEEDS, dtype=jnp.uint32), jnp.zeros(SEEDS, jnp.int32), jnp.ones(SEEDS, jnp.int32)
    )
    return draw(rows, logits, logits, noise, 0, law_needed=law_needed)


def test_a_token_is_drawn_from_the_law_that_is_returned():
    """Half of the rows are sampled, with a filter, and half are greedy."""
    logits = np.tile(np.array([1.0, 2.5, 0.5, 2.0, -np.inf, -1.0], np.float32), (SEEDS, 1))
    greedy = np.arange(SEEDS) % 2 == 0
    settings = [{"temperature": 0.0} if row else {"temperature": 1.3, "top_k": 4} for row in greedy]
    drawn = draw_many(filter_rows(settings), logits, True)
    tokens, laws = np.asarray(drawn.tokens), np.asarray(drawn.log_law)
    assert np.all(drawn.drawable)

    np.testing.assert_array_equal(tokens[greedy], 1)
    np.testing.assert_array_equal(
        laws[greedy], np.tile([-np.inf, 0, -np.inf, -np.inf, -np.inf, -np.inf], (SEEDS // 2, 1))
    )

    sampled = tokens[~greedy]
    law = np.exp(laws[~greedy][0])
    np.testing.assert_allclose(np.exp(laws[~greedy]).sum(axis=1), 1, rtol=1e-5)
    frequency = np.bincount(sampled, minlength=VOCAB) / len(sampled)
    assert np.all(frequency[law == 0] == 0)
    np.testing.assert_array_less(
        np.abs(frequency - law)[law > 0], 5 * np.sqrt(law * (1 - law) / len(sampled))[law > 0]
    )


def test_without_a_need_for_the_law_the_likeliest_token_is_taken():
    logits = np.random.default_rng(4).integers(0, 3, (SEEDS, VOCAB)).astype(np.float32)
    drawn = draw_many(filter_rows([{"temperature": 0.0}] * SEEDS), logits, False)
    np.testing.assert_array_equal(drawn.tokens, logits.argmax(axis=1))


@pytest.mark.parametrize(
    ("raw", "processed", "expected"),
    (
        ([0.0, 1.0], [0.0, 1.0], True),
        ([0.0, -np.inf], [0.0, -np.inf], True),
        ([0.0, 1.0], [-np.inf, 1.0], True),
        ([0.0, np.nan], [0.0, np.nan], False),
        ([np.nan, 0.0], [-np.inf, 0.0], False),
        ([0.0, np.inf], [0.0, -np.inf], False),
        ([0.0, 1.0], [-np.inf, -np.inf], False),
        ([-np.inf, -np.inf], [-np.inf, -np.inf], False),
        ([0.0, 1.0], [0.0, np.nan], False),
        ([0.0, 1.0], [np.inf, 1.0], False),
    ),
)
def test_what_can_be_drawn(raw, processed, expected):
    assert bool(drawable(jnp.array(raw), jnp.array(processed))) is expected


@pytest.mark.parametrize("temperature", (1e-3, 1e-30, 1e-37))
def test_a_tiny_temperature_takes_the_likeliest_token(temperature):
    rows = rows_of(Sampling(temperature=temperature), 1)
    law = log_law(rows, jnp.array([[3.0, 40.0, -jnp.inf, -20.0]]))
    assert law[0, 1] == 0
    assert np.all(np.delete(law[0], 1) < -1000)  # NaN is not


def test_memory_does_not_hold_a_state_for_each_position():
    """Logits come and go once more for each position, transposed; counts of tokens stay one for each row."""
    batch, vocab_size = 4, 8192
    pipeline = Pipeline()
    rows = rows_of(Sampling(frequency_penalty=1.0), batch)
    states = pipeline.init(jnp.zeros((batch, 8), jnp.int32), jnp.full(batch, 3), vocab_size)

    def temporaries(width):
        logits = jax.ShapeDtypeStruct((batch, width, vocab_size), jnp.float32)
        drafted = jax.ShapeDtypeStruct((batch, width - 1), jnp.int32)
        compiled = jax.jit(pipeline.process_block).lower(rows, states, logits, drafted).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    of_a_position = (temporaries(17) - temporaries(5)) / 12
    assert of_a_position < 2.1 * batch * vocab_size * 4
