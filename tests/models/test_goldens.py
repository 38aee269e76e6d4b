"""Logits against those that transformers computes with torch (scripts/make_model_goldens.py)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import specjax
from specjax.models import Transformer, checkpoint

TOLERANCE = 2e-3
NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def reference(goldens):
    return json.loads((goldens / "smollm2_135m_float32.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def scored(reference, smollm2, score):
    """Pairs of a case and the logits of its prompt and greedy tokens; padded together, so compiled once."""
    sequences = [case["input_ids"] + case["greedy_ids"] for case in reference["cases"]]
    padded = np.zeros((len(sequences), max(map(len, sequences))), np.int32)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return list(zip(reference["cases"], score(smollm2.model, padded), strict=True))


def test_smollm2_logits_at_every_prompt_position(reference, scored):
    for case, logits in scored:
        prompt = logits[: len(case["input_ids"])]
        top = np.take_along_axis(prompt, np.array(case["top_ids"]), axis=-1)
        np.testing.assert_allclose(top, case["top_logits"], atol=TOLERANCE)
        np.testing.assert_allclose(prompt[:, reference["probe_ids"]], case["probe_logits"], atol=TOLERANCE)
        logsumexp = np.logaddexp.reduce(prompt.astype(np.float64), axis=-1)
        np.testing.assert_allclose(logsumexp, case["logsumexp"], atol=TOLERANCE)
        # The listed ids are the largest: nothing else is above the eighth.
        assert np.all(np.sort(prompt)[:, -8] <= top.min(axis=-1) + TOLERANCE)


def test_smollm2_scores_greedy_tokens_highest_up_to_the_first_near_tie(scored):
    for case, logits in scored:
        first, end = len(case["input_ids"]) - 1, decided(case)
        assert logits[first : first + end].argmax(axis=-1).tolist() == case["greedy_ids"][:end]


def test_smollm2_generates_the_greedy_tokens(reference, smollm2):
    cases = reference["cases"]
    lengths = np.array([len(case["input_ids"]) for case in cases], np.int32)
    prompts = np.zeros((len(cases), lengths.max()), np.int32)
    for row, case in zip(prompts, cases, strict=True):
        row[: len(case["input_ids"])] = case["input_ids"]
    config = specjax.DecodeConfig(max_new_tokens=64)
    result = specjax.generate(smollm2.model, prompts, lengths, config=config)
    for tokens, case in zip(np.asarray(result.tokens), cases, strict=True):
        end = decided(case)
        assert tokens[:end].tolist() == case["greedy_ids"][:end]


def test_the_reference_has_something_to_compare(reference):
    assert sum(map(decided, reference["cases"])) > 100


def decided(case):
    """How many greedy tokens precede the first whose lead over the runner-up is within numerical noise."""
    near_ties = np.flatnonzero(np.array(case["greedy_margins"]) < NEAR_TIE)
    return int(near_ties[0]) if near_ties.size else len(case["greedy_ids"])


def test_smollm2_prompt_ids(reference, smollm2):
    for case in reference["cases"]:
        assert smollm2.encode_chat(case["prompt"]) == case["input_ids"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["tiny_llama3", "tiny_qwen2"])
def test_tiny_checkpoint_logits(name, goldens, score):
    opened = checkpoint.open_checkpoint(goldens / name)
    model = Transformer.from_weights(opened.config, opened.tensor, np.float32)
    expected = json.loads((goldens / name / "expected.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(score(model, expected["input_ids"]), expected["logits"], atol=1e-4)
