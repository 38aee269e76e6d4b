"""Greedy text under processors: that of a plain loop, whatever is drafted and however many tokens a round."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafts import Model, Ngram
from specjax.sampling import Automaton
from specjax.testing import Oracle, TableLM, count_compiles
from tests import reference

VOCAB, NEW = 7, 24
# Strong values; the longest texts keep clear of a state in which every token is banned.
ALONE = {
    "repetition_penalty": {"repetition_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 15},
    "forced_first_token": {"forced_first_token": 3},
    "forced_last_token": {"forced_last_token": 5},
    "logit_bias": {"logit_bias": {2: 4.0, 5: -4.0}},
    "sequence_bias": {"sequence_bias": {(2, 3): -50.0, (1, 2, 0): 50.0}},
    "banned_tokens": {"banned_tokens": [4, 1]},
    "banned_sequences": {"banned_sequences": [[5, 3], [0, 1], [2, 1, 2]]},
    "suppressed_first_tokens": {"suppressed_first_tokens": [0, 1, 2, 6]},
}
TOGETHER = {
    "repetition_penalty": 1.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 2.0,
    "no_repeat_ngram_size": 3,
    "min_new_tokens": 9,
    "forced_first_token": 3,
    "forced_last_token": 5,
    "logit_bias": {2: 1.0},
    "sequence_bias": {(1, 2): 3.0},
    "banned_tokens": [0],
    "banned_sequences": [[3, 3]],
}
ROWS = [{}, *ALONE.values(), TOGETHER]
EOS = [4, 6]
PROMPTS = np.random.default_rng(3).integers(0, VOCAB, (len(ROWS), 4)).astype(np.int32)
LENGTHS = np.arange(len(ROWS), dtype=np.int32) % 4 + 1
TARGET, DRAFT = TableLM.random(VOCAB, seed=0), TableLM.random(VOCAB, seed=1)


def sampling(rows):
    off = {
        field.name: field.default for field in dataclasses.fields(specjax.Sampling) if field.name != "seed"
    }
    off |= {"logit_bias": {}, "sequence_bias": {}}
    columns = {name: [row.get(name, default) for row in rows] for name, default in off.items()}
    return specjax.Sampling(**columns)


def eos_ids(settings):
    """Texts that nothing keeps from ending would soon end."""
    return EOS if "min_new_tokens" in settings else []


def expected_text(row, settings, process=lambda logits, text: logits):
    """The row's tokens by a loop over one token after another."""
    prompt = tuple(PROMPTS[row, : LENGTHS[row]].tolist())
    text, table = list(prompt), np.asarray(TARGET.table[...])
    for _ in range(NEW):
        logits, output = table[text[-2] if len(text) > 1 else 0, text[-1]], text[len(prompt) :]
        logits = process(
            reference.process(logits, prompt, output, settings | {"budget": NEW}, eos_ids(settings)), text
        )
        text.append(int(np.argmax(logits)))
        if text[-1] in eos_ids(settings):
            break
    return text[len(prompt) :]


def expected_texts(rows=ROWS):
    return [expected_text(row, settings) for row, settings in enumerate(rows)]


def run(draft, gamma, processors=(), rows=ROWS):
    return specjax.generate(
        TARGET,
        PROMPTS,
        LENGTHS,
        draft=draft,
        config=specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, debug=True),
        sampling=sampling(rows),
        stop=specjax.Stop(eos_ids=[eos_ids(settings) for settings in rows]),
        processors=processors,
    )


def tokens_of(out):
    return [row[:length].tolist() for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)]


GAMMAS = (4, *(pytest.param(gamma, marks=pytest.mark.slow) for gamma in (1, 2, 3, 5, 6, 7, 8)))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    "draft",
    (
        pytest.param(Model(DRAFT), id="model"),
        pytest.param(Model(TARGET), id="self", marks=pytest.mark.slow),
        pytest.param(Ngram(), id="ngram", marks=pytest.mark.slow),
    ),
)
def test_greedy_text_is_that_of_a_plain_loop(draft, gamma):
    out = run(draft, gamma)
    assert tokens_of(out) == expected_texts()
    # The self draft knows the processors too, so a token penalised for an earlier one of its block is there.
    assert np.sum(out.stats.accepted) > 0
    if draft.module is TARGET:
        to_the_end = np.asarray(out.finish_reasons) == specjax.FinishReason.LENGTH
        np.testing.assert_array_equal(out.stats.accepted[to_the_end], out.stats.drafted[to_the_end])


def test_every_processor_changes_the_text():
    """Or the test above would show nothing of it."""
    for row, settings in enumerate(ROWS):
        without = {"min_new_tokens": 0} if "min_new_tokens" in settings else {}
        changed = expected_text(row, settings) != expected_text(row, without)
        assert changed == bool(settings), settings


@dataclasses.dataclass(frozen=True)
class NoStutter:
    """A caller's processor, as its documentation shows it: no token right after itself."""

    def init(self, prompt, length, vocab_size):
        return prompt[length - 1]

    def apply(self, last, logits):
        return logits.at[last].set(-jnp.inf)

    def advance(self, last, token):
        return token


@pytest.mark.slow
@pytest.mark.parametrize("gamma", range(1, 9))
def test_a_callers_processor_is_followed(gamma):
    def no_stutter(logits, text):
        return np.where(np.arange(VOCAB) == text[-1], -np.inf, logits)

    rows = [row for row in range(len(ROWS)) if "forced_last_token" not in ROWS[row]]
    expected = [expected_text(row, ROWS[row], no_stutter) for row in rows]
    for draft in (Model(TARGET), Ngram()):
        texts = tokens_of(run(draft, gamma, (NoStutter(),)))
        assert [texts[row] for row in rows] == expected


def test_states_are_those_of_the_text_after_every_round():
    """The draft proposes, at a slot of its own in each row, a token that the automaton forbids there."""
    vocab_size, gamma, states = 8, 4, 4
    # Even tokens from even states, odd ones from odd states: the token after an allowed one is forbidden.
    tokens, rows = np.arange(vocab_size), np.arange(gamma + 1)
    allowed = np.arange(states)[:, None] % 2 == tokens % 2
    transitions = np.where(allowed, (tokens // 2 + np.arange(states)[:, None]) % states, -1)
    target = TableLM.random(vocab_size, seed=2)
    table, settings = np.asarray(target.table[...]), {"frequency_penalty": 0.5, "repetition_penalty": 1.3}
    prompts, lengths = np.tile(np.arange(3, dtype=np.int32), (gamma + 1, 1)), np.full(gamma + 1, 3, np.int32)
    prompts[:, 2] = rows

    def state_of(output):
        return functools.reduce(lambda state, token: transitions[state, token], output, 0)

    texts = []
    for prompt in prompts.tolist():
        text = list(prompt)
        for _ in range(NEW):
            logits = reference.process(table[text[-2], text[-1]], prompt, text[3:], settings)
            logits[~allowed[state_of(text[3:])]] = -np.inf
            text.append(int(np.argmax(logits)))
        texts.append(text[3:])

    decoder = specjax.Decoder(
        target,
        Oracle.of(texts, lengths, wrong_at=rows),
        specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, debug=True),
        processors=(Automaton.of_transitions(transitions),),
    )
    state = decoder.start(prompts, lengths, sampling=specjax.Sampling(**settings))
    while np.any(state.running):
        state = decoder.run_rounds(state, 1)
        recent, penalties, seen, generated, automaton = state.processors
        for row, text in enumerate(texts):
            output = text[: state.length[row] - 3]
            assert np.asarray(state.tokens)[row, 3 : state.length[row]].tolist() == output
            assert automaton[row] == state_of(output)
            np.testing.assert_array_equal(penalties.in_output[row], np.bincount(output, minlength=vocab_size))
            assert recent[row, -1] == output[-1]
            assert generated[row] == seen.length[row] - 3 == len(output)
    accepted = np.asarray(state.stats.accepted_at) > 0
    np.testing.assert_array_equal(accepted, np.arange(gamma) < rows[:, None])


def test_other_settings_compile_nothing():
    run(Ngram(), 4)
    moved = ROWS[1:] + ROWS[:1]
    with count_compiles() as compiles:
        out = run(Ngram(), 4, rows=moved)
    assert compiles.count == 0
    assert tokens_of(out) == expected_texts(moved)
