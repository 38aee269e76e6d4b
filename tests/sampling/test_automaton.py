"""Automata: their tables, and that every output is one that they accept."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafts import Model, Ngram, NoDraft
from specjax.sampling import Automaton
from specjax.testing import TableLM, count_compiles

TOKENS = ["a", "b", "ab", "c", None, "bc", ""]
EOS = 4


def texts_of(automaton, longest):
    """Every text that ends with EOS after at most `longest` tokens."""
    found, paths = set(), [((), 0)]
    for _ in range(longest + 1):
        following = []
        for path, state in paths:
            for token, column in enumerate(automaton.columns):
                after = automaton.table[state, column]
                if after >= 0 and token == EOS:
                    found.add(path)
                elif after >= 0:
                    following.append(((*path, token), after))
        paths = following
    return found


@pytest.mark.parametrize("pattern", ("(ab)*c", "a|b+", "[^a]{2}", "a?b?c?", "(a|bc)+", ".*"))
def test_a_regular_expression_is_followed_whatever_the_tokens(pattern):
    automaton = Automaton.from_regex(pattern, TOKENS, [EOS])
    usable = [token for token, text in enumerate(TOKENS) if text]
    expected, paths = set(), [()]
    for _ in range(4):
        expected |= {path for path in paths if re.fullmatch(pattern, "".join(TOKENS[i] for i in path))}
        paths = [(*path, token) for path in paths for token in usable]
    assert texts_of(automaton, 3) == expected


def test_no_text_is_led_into_a_dead_end():
    """With the token "d" alone, "abd" cannot be finished, since no token says "e"."""
    automaton = Automaton.from_regex("ab(de)?", ["a", "b", "d", None], [3])
    state = automaton.table[automaton.table[0, automaton.columns[0]], automaton.columns[1]]
    assert automaton.table[state, automaton.columns[2]] == -1
    assert automaton.table[state, automaton.columns[3]] >= 0


@pytest.mark.parametrize(
    "arguments, message",
    (
        (("(a", TOKENS, [EOS]), r"pattern is '\(a'; expected a regular expression"),
        (("x", TOKENS, [EOS]), "pattern is 'x'; expected one that some sequence of tokens matches"),
        (("a", TOKENS, [7]), "eos_ids holds 7; expected ids from 0 to 6"),
        (("a", TOKENS, []), "eos_ids is empty"),
    ),
)
def test_what_makes_no_automaton_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Automaton.from_regex(*arguments)


@pytest.mark.parametrize(
    "transitions, message",
    (
        (np.zeros(3, int), r"shape \(3,\)"),
        (np.zeros((0, 3), int), r"shape \(0, 3\)"),
        ([[0, 1], [0, 2]], r"transitions\[1, 1\] is 2; expected -1 or a state from 0 to 1"),
        ([[0, -2]], r"transitions\[0, 1\] is -2"),
    ),
)
def test_tables_that_make_no_sense_are_refused(transitions, message):
    with pytest.raises(ValueError, match=message):
        Automaton.of_transitions(transitions)


VOCAB, NEW = 5, 4
PROMPT = (3, 1, 4, 3, 1)
TARGET, DRAFT = TableLM.random(VOCAB, seed=0), TableLM.random(VOCAB, seed=1)
# One column twice; every state has a way on.
TRANSITIONS = np.array([[1, -1, 2, 1, -1], [-1, 0, 2, -1, 0], [2, 1, -1, 2, 1]])


def decode(draft, gamma, automaton, target=TARGET, samples=1, **sampling):
    return specjax.generate(
        target,
        np.tile(np.array(PROMPT, np.int32), (samples, 1)),
        np.full(samples, len(PROMPT)),
        draft=draft,
        config=specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, debug=True),
        sampling=specjax.Sampling(**sampling),
        processors=(automaton,),
    )


def accepts(transitions, tokens):
    state = 0
    for token in tokens:
        if state >= 0:
            state = transitions[state, token]
    return state >= 0


@pytest.mark.parametrize("gamma", (pytest.param(1, marks=pytest.mark.slow), 4))
def test_greedy_text_is_that_of_plain_decoding(gamma):
    automaton = Automaton.of_transitions(TRANSITIONS)
    plain = decode(NoDraft(width=gamma), gamma, automaton)
    assert accepts(TRANSITIONS, plain.tokens[0])
    for draft in (Model(TARGET), Model(DRAFT)):
        np.testing.assert_array_equal(decode(draft, gamma, automaton).tokens, plain.tokens)


def test_another_table_of_the_same_size_compiles_nothing():
    automata = [Automaton.of_transitions(np.roll(TRANSITIONS, shift, axis=1)) for shift in (0, 1)]
    outputs = [decode(Ngram(), 2, automata[0])]
    with count_compiles() as compiles:
        outputs.append(decode(Ngram(), 2, automata[1]))
    assert compiles.count == 0
    for shift, out in enumerate(outputs):
        assert accepts(np.roll(TRANSITIONS, shift, axis=1), out.tokens[0])
    assert np.any(outputs[0].tokens != outputs[1].tokens)


def test_a_regular_expression_ends_with_eos():
    tokens = ["1", "2", ",", "x", None]
    target = TableLM.random(VOCAB, seed=2)
    target.eos_ids = (4,)
    pattern = "[12](,[12])?"
    automaton = Automaton.from_regex(pattern, tokens, target.eos_ids)
    out = decode(Model(DRAFT), 3, automaton, target, samples=500, temperature=2.0)
    assert np.all(out.finish_reasons == specjax.FinishReason.EOS)
    texts = {"".join(tokens[i] for i in row[: n - 1]) for row, n in zip(out.tokens, out.lengths, strict=True)}
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(texts) == 6


def test_a_state_without_a_way_on_ends_the_row_with_an_error():
    out = decode(Ngram(), 2, Automaton.of_transitions(np.array([[1] * VOCAB, [-1] * VOCAB])))
    assert out.finish_reasons[0] == specjax.FinishReason.ERROR
    assert out.lengths[0] == 1


def test_an_automaton_of_another_vocabulary_is_refused():
    with pytest.raises(AssertionError, match="Automaton knows 3 tokens; expected the target's 5"):
        decode(Ngram(), 2, Automaton(jnp.zeros((1, 1), jnp.int32), jnp.zeros(3, jnp.int32)))
