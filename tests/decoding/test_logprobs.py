"""Log-probabilities of emitted tokens, against the closed form of the law, for every part a token plays."""

import jax
import numpy as np
import pytest

import specjax
from specjax import FinishReason
from specjax.drafts import Model
from specjax.testing.table_lm import TableLM
from tests import reference

VOCAB, GAMMA, NEW = 7, 2, 24
TARGET = TableLM.random(VOCAB, seed=0)
TABLE = np.asarray(TARGET.table[...])
# Close enough to the target that all of a draft, a part of it or nothing is accepted.
DRAFT = TableLM(TABLE + 0.7 * np.random.default_rng(1).normal(size=TABLE.shape).astype(np.float32))
PROMPTS = np.array([[3, 1, 4, 1], [5, 2, 0, 0], [6, 0, 0, 0], [2, 4, 6, 0]] * 2, np.int32)
LENGTHS = np.array([4, 2, 1, 3] * 2, np.int32)
PENALTIES = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "logit_bias": {2: 1.5},
}
FILTERS = {"top_k": 5, "top_p": 0.9, "min_p": 0.05}
# Greedy rows first; in each half one row without penalties or filters.
TEMPERATURES = np.array([0, 0, 0, 0, 0.5, 1.0, 1.0, 1.7])
SETTINGS = [{}, PENALTIES, FILTERS, PENALTIES | FILTERS, PENALTIES, {}, FILTERS, PENALTIES | FILTERS]
DEFAULTS = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}
CONFIG = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, logprobs=True)
DECODER = specjax.Decoder(TARGET, Model(DRAFT), CONFIG)


def sampling(seed):
    columns = {name: [row.get(name, default) for row in SETTINGS] for name, default in DEFAULTS.items()}
    biases = [row.get("logit_bias", {}) for row in SETTINGS]
    return specjax.Sampling(temperature=TEMPERATURES, **columns, logit_bias=biases, seed=seed)


def laws(row):
    """The processed and the raw law of a row: functions of its text so far, giving float64[V]."""
    prompt = tuple(PROMPTS[row, : LENGTHS[row]].tolist())
    settings = SETTINGS[row]
    if TEMPERATURES[row] == 0:
        settings = {name: value for name, value in settings.items() if name not in FILTERS}
    else:
        settings = {**settings, "temperature": TEMPERATURES[row]}
    processed = reference.table_log_law(TABLE, settings, prompt)
    return prompt, processed, reference.table_log_law(TABLE, {}, prompt)


def expected_logprobs(row, tokens):
    text, processed, raw = laws(row)
    pairs = []
    for token in tokens:
        pairs.append((processed(text)[token], raw(text)[token]))
        text = (*text, int(token))
    return np.array(pairs).T


def parts_played(seed, **settings):
    """The result, and for each row which part each of its tokens played."""
    state = DECODER.start(PROMPTS, LENGTHS, sampling=sampling(seed), **settings)
    parts = [[] for _ in TEMPERATURES]
    while np.any(state.running):
        before = {name: np.asarray(getattr(state.stats, name)) for name in ("emitted", "drafted", "accepted")}
        state = DECODER.run_rounds(state, 1)
        emitted, drafted, accepted = (
            np.asarray(getattr(state.stats, name)) - before[name] for name in before
        )
        for row, row_parts in enumerate(parts):
            if emitted[row]:
                last = "bonus" if accepted[row] == drafted[row] else "replacement"
                row_parts += ["accepted"] * accepted[row] + [last]
    return DECODER.result(state), parts


@pytest.mark.parametrize("seed", range(3))
def test_logprobs_equal_the_law_whichever_part_a_token_played(seed):
    out, parts = parts_played(seed)
    logprobs, raw_logprobs = np.asarray(out.logprobs), np.asarray(out.raw_logprobs)
    played = {"greedy": set(), "sampled": set()}
    for row, row_parts in enumerate(parts):
        assert len(row_parts) == NEW
        processed, raw = expected_logprobs(row, np.asarray(out.tokens)[row])
        for part in ("accepted", "replacement", "bonus"):
            places = [place for place, played_part in enumerate(row_parts) if played_part == part]
            np.testing.assert_allclose(logprobs[row, places], processed[places], atol=2e-5)
            np.testing.assert_allclose(raw_logprobs[row, places], raw[places], atol=2e-5)
            played["sampled" if TEMPERATURES[row] else "greedy"].update([part] if places else [])
    assert played == {half: {"accepted", "replacement", "bonus"} for half in ("greedy", "sampled")}


def test_every_token_is_one_that_the_filters_allow_whichever_part_it_played():
    """Under a draft that keeps to no filter and no bias, and so proposes what is not allowed."""
    settings = {"draft_sampling": specjax.Sampling(temperature=2.0)}
    filtered, played, rejected = [row for row in range(8) if "top_k" in SETTINGS[row]], [], 0
    for seed in range(3):
        out, parts = parts_played(seed, **settings)
        for row in filtered:
            if TEMPERATURES[row]:
                processed, _ = expected_logprobs(row, np.asarray(out.tokens)[row])
                assert np.all(processed > -np.inf)
                played += parts[row]
        rejected += np.sum(out.stats.drafted) - np.sum(out.stats.accepted)
    assert rejected > 0
    assert min(played.count(part) for part in ("accepted", "replacement", "bonus")) > 10


def test_logprobs_after_the_end_are_zero():
    def run(stop):
        state = DECODER.start(PROMPTS, LENGTHS, sampling=sampling(0), stop=stop)
        return DECODER.result(DECODER.run_rounds(state))

    free = run(specjax.Stop())
    eos = [[int(token)] for token in free.tokens[:, 5]]
    budgets = [NEW, NEW, 7, 0, NEW, 1, NEW, 4]
    out = run(specjax.Stop(eos_ids=eos, max_new_tokens=budgets))
    lengths = np.asarray(out.lengths)
    assert {FinishReason.EOS, FinishReason.LENGTH} <= set(np.asarray(out.finish_reasons))
    assert np.all(lengths < NEW)
    within = np.arange(NEW) < lengths[:, None]
    np.testing.assert_array_equal(out.logprobs, np.where(within, free.logprobs, 0))
    np.testing.assert_array_equal(out.raw_logprobs, np.where(within, free.raw_logprobs, 0))
    assert np.all(np.asarray(out.raw_logprobs)[within] < 0)


def test_logprobs_are_not_returned_unless_asked_for():
    config = specjax.DecodeConfig(max_new_tokens=2)
    out = jax.eval_shape(lambda prompts: specjax.decode(TARGET, prompts, LENGTHS, config=config), PROMPTS)
    assert out.logprobs is None
    assert out.raw_logprobs is None
