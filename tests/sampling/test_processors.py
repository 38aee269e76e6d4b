"""Processors against transformers, and against arrays small enough to check by hand."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import check_processor_cases as reference
from specjax.sampling import Pipeline, Sampling, to_rows
from specjax.sampling.processors import Penalties, PerRow


@pytest.fixture(scope="module")
def golden_rows(goldens):
    cases = json.loads((goldens / "hf_processors.json").read_text(encoding="utf-8"))["cases"]
    return [row for case in cases for row in reference.rows_of(case)]


def test_laws_equal_those_of_transformers(golden_rows):
    assert all(reference.is_supported(row) for row in golden_rows)
    assert not reference.check(golden_rows)


def test_the_comparison_with_transformers_notices_a_setting_that_has_no_effect(golden_rows):
    """Without its settings, every kind of case must disagree somewhere."""
    ignored = [
        {**row, "params": {key: row["params"][key] for key in ("prompt_length", "eos_token_id")}}
        for row in golden_rows
    ]
    kinds = {row["name"] for row in golden_rows}
    assert {problem.split()[0] for problem in reference.check(ignored)} == kinds


def process(logits, prompt, output, eos_ids=(), budget=99, **settings):
    """Processed logits of one row, whose prompt is padded with token 3."""
    pipeline = Pipeline(longest_bias=3)
    padded = jnp.array([[*prompt, *[3] * 9]], jnp.int32)
    rows = to_rows(
        Sampling(**settings),
        1,
        eos_ids=jnp.array([[*eos_ids, -1]], jnp.int32),
        max_new_tokens=jnp.array([budget], jnp.int32),
        max_bias=2,
        max_bias_len=3,
    )
    states = pipeline.init(padded, jnp.array([len(prompt)], jnp.int32), len(logits))
    states = pipeline.advance_block(states, jnp.array([output], jnp.int32), jnp.array([len(output)]))
    return np.asarray(pipeline.process(rows, states, jnp.array([logits], jnp.float32)))[0].tolist()


def test_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_negative():
    # Token 0 is in the prompt, 1 and 2 are in the output, 3 only in the padding.
    assert process([4, -4, 0, 8], [0], [1, 2], repetition_penalty=2.0) == [2, -8, 0, 8]


def test_presence_and_frequency_penalties_count_the_output_only():
    assert process([1, 1, 1, 1], [0, 0], [1, 2, 2], presence_penalty=0.5) == [1, 0.5, 0.5, 1]
    assert process([1, 1, 1, 1], [0, 0], [1, 2, 2], frequency_penalty=0.25) == [1, 0.75, 0.5, 1]


def test_penalties_follow_one_another():
    both = process([4, 4, 4, 4], [], [1, 2, 2], repetition_penalty=2, presence_penalty=1, frequency_penalty=4)
    assert both == [4, 2 - 1 - 4, 2 - 1 - 8, 4]


def test_bias_comes_before_the_repetition_penalty():
    assert process([1, 1, 1, 1], [0, 1], [], logit_bias={0: 3.0}, repetition_penalty=2.0) == [2, 0.5, 1, 1]


def test_banned_tokens_stay_banned_whatever_else_is_asked():
    settings = {"banned_tokens": [1], "repetition_penalty": 0.5, "presence_penalty": -9.0}
    assert process([1, 1, 1, 1], [1], [1], **settings)[1] == -np.inf


def test_empty_slots_do_not_touch_the_last_token():
    """Slots are marked by -1, which as an index would be the last token."""
    assert process([1, 1, 1, 1], [0], [], [2], logit_bias={0: 1.0}, min_new_tokens=1) == [2, 1, -np.inf, 1]


@pytest.mark.parametrize(("generated", "banned"), ((0, True), (1, True), (2, False), (3, False)))
def test_eos_is_banned_before_the_minimum_length(generated, banned):
    logits = process([1, 1, 1, 1], [0, 1], [2, 2, 2][:generated], eos_ids=[0, 3], min_new_tokens=2)
    assert logits == ([-np.inf, 1, 1, -np.inf] if banned else [1, 1, 1, 1])


NO = -np.inf


@pytest.mark.parametrize(
    "text, expected",
    (
        ([0], [1, 3, 1, 1]),  # a prompt that is just the beginning
        ([2, 0], [1, 3, 1, 1]),
        ([0, 2], [1, 1, 1, 1]),
        ([2, 1, 0], [1, 3, 0, 1]),
        ([1, 0], [1, 3, 0, 1]),
    ),
)
def test_a_bias_of_a_sequence_counts_where_its_beginning_stands(text, expected):
    for split in range(1, len(text) + 1):
        settings = {"sequence_bias": {(0, 1): 2.0, (1, 0, 2): -1.0}}
        assert process([1, 1, 1, 1], text[:split], text[split:], **settings) == expected


def test_a_banned_sequence_is_not_completed():
    assert process([1, 1, 1, 1], [0], [1], banned_sequences=[[0, 1, 1], [2]]) == [1, NO, NO, 1]
    assert process([1, 1, 1, 1], [0], [2], banned_sequences=[[0, 1, 1], [2, 3]]) == [1, 1, 1, NO]


@pytest.mark.parametrize(
    "size, text, expected",
    (
        (0, [0, 1, 0], [1, 1, 1, 1]),
        (1, [0, 1, 0], [NO, NO, 1, 1]),
        (2, [0, 1, 0], [1, NO, 1, 1]),
        (2, [0, 0, 0], [NO, 1, 1, 1]),
        (2, [0], [1, 1, 1, 1]),
        (3, [0, 1, 2, 0, 1], [1, 1, NO, 1]),
        (3, [0, 1, 2, 3, 1], [1, 1, 1, 1]),
        (3, [0, 1], [1, 1, 1, 1]),
        (9, [0, 1, 2, 0, 1], [1, 1, 1, 1]),
    ),
)
def test_no_ngram_occurs_twice(size, text, expected):
    for split in range(1, len(text) + 1):
        assert process([1, 1, 1, 1], text[:split], text[split:], no_repeat_ngram_size=size) == expected


def test_the_first_and_the_last_token_can_be_forced():
    both = {"forced_first_token": 2, "forced_last_token": 0, "banned_tokens": [2], "budget": 3}
    assert process([1, 1, 1, 1], [0], [], **both) == [NO, NO, 0, NO]
    assert process([1, 1, 1, 1], [0], [2], **both) == [1, 1, NO, 1]
    assert process([1, 1, 1, 1], [0], [2, 1], **both) == [0, NO, NO, NO]


def test_tokens_are_suppressed_at_the_first_place_alone():
    assert process([1, 1, 1, 1], [0], [], suppressed_first_tokens=[3, 0]) == [NO, 1, 1, NO]
    assert process([1, 1, 1, 1], [0], [1], suppressed_first_tokens=[3, 0]) == [1, 1, 1, 1]


def test_states_of_rows_that_are_not_valid_stay():
    prompts, lengths = jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32)
    pipeline = Pipeline(user=(ForbidTwice(),))
    states = pipeline.init(prompts, lengths, 4)
    advanced = pipeline.advance(states, jnp.array([2, 3]), jnp.array([False, True]))
    for new, old in zip(jax.tree.leaves(advanced), jax.tree.leaves(states), strict=True):
        np.testing.assert_array_equal(new[0], old[0])
    assert any(
        np.any(np.asarray(new[1]) != np.asarray(old[1]))
        for new, old in zip(jax.tree.leaves(advanced), jax.tree.leaves(states), strict=True)
    )


@dataclasses.dataclass(frozen=True)
class ForbidTwice:
    """A caller's processor: no token right after itself."""

    def init(self, prompt, length, vocab_size):
        return prompt[length - 1]

    def apply(self, state, logits):
        return logits.at[state].set(-jnp.inf)

    def advance(self, state, token):
        return token


def test_a_callers_processor_sees_each_row_with_its_own_state():
    processor = PerRow(ForbidTwice())
    state = processor.init(jnp.array([[1, 2, 0], [3, 0, 0]]), jnp.array([2, 1]), 4)
    logits = processor.apply(None, state, jnp.ones((2, 4)))
    np.testing.assert_array_equal(logits, [[1, 1, -np.inf, 1], [1, 1, 1, -np.inf]])
    state = processor.advance(state, jnp.array([0, 0]), jnp.array([True, False]))
    logits = processor.apply(None, state, jnp.ones((2, 4)))
    np.testing.assert_array_equal(logits, [[-np.inf, 1, 1, 1], [1, 1, 1, -np.inf]])


def test_counts_do_not_overlook_the_first_or_the_last_token_of_the_vocabulary():
    state = Penalties().init(jnp.array([[0, 3, 1]]), jnp.array([2]), 4)
    np.testing.assert_array_equal(state.in_prompt, [[True, False, False, True]])
    for token in (3, 0, 3):
        state = Penalties().advance(state, jnp.array([token]), jnp.array([True]))
    np.testing.assert_array_equal(state.in_output, [[1, 0, 0, 2]])
