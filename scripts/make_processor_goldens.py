"""Makes tests/goldens/hf_processors.json: logits as transformers' `generate` would process them.

    python scripts/make_processor_goldens.py

Needs torch and transformers, and nothing of specjax: the reference has to come from somewhere else. Which
processors run, and in which order, is left to transformers: each case is a `GenerationConfig`.

A case has `name`, `params`, `input_ids` [B, N] of which the first `prompt_length` are the prompt, `logits`
[B, V] and `expected` [B, V]; null is -inf. Left out are cases in which top-p would split exact ties at its
border: there the order of a sort decides, while a threshold keeps all of them.
"""

from __future__ import annotations

import json
import pathlib
import types

import numpy as np
import torch
import transformers

PATH = pathlib.Path(__file__).parents[1] / "tests" / "goldens" / "hf_processors.json"
ROWS, VOCAB = 2, 24
EOS = [2, 3]  # transformers ignores bad words that are EOS ids, so none of them is
SETTINGS = {
    "temperature": [{"temperature": value} for value in (0.01, 0.7, 1.0, 30.0)],
    "top_k": [{"top_k": value} for value in (1, 5, 23, 24, 100)],
    "top_p": [{"top_p": value} for value in (1e-6, 0.1, 0.5, 0.9, 0.99)],
    "min_p": [{"min_p": value} for value in (1e-6, 0.02, 0.2, 0.9, 1.0)],
    "repetition_penalty": [{"repetition_penalty": value} for value in (0.01, 0.7, 1.3, 2.0, 50.0)],
    "sequence_bias": [
        {"sequence_bias": bias}
        for bias in ([[[7], 2.5]], [[[0], -100.0], [[23], 100.0]], [[[5], 1.0], [[6], -1.0], [[8], 0.25]])
    ],
    "bad_words": [{"bad_words_ids": words} for words in ([[5]], [[0], [23], [11]])],
    "bad_sequences": [{"bad_words_ids": words} for words in ([[0, 1]], [[5], [1, 1, 0], [0, 2, 1, 0]])],
    "sequences": [{"sequence_bias": [[[0, 1], 2.5], [[1, 2], -3.0], [[2, 0, 1], 4.0], [[1], 1.0]]}],
    "no_repeat_ngram": [{"no_repeat_ngram_size": value} for value in (1, 2, 3, 4)],
    "forced_last": [{"forced_eos_token_id": 7, "max_length": value} for value in (9, 10, 11)],
    "suppressed_first": [{"begin_suppress_tokens": tokens} for tokens in ([3], [0, 23, 11])],
    "min_new_tokens": [{"min_new_tokens": value} for value in (3, 4, 5, 9)],
    "chain": [
        {"repetition_penalty": 1.2, "temperature": 0.7, "top_k": 8, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.6, "min_p": 0.05},
        {"repetition_penalty": 1.5, "temperature": 0.3, "top_k": 3, "top_p": 0.95, "min_p": 0.1},
        {"sequence_bias": [[[4], 3.0], [[9], -2.0]], "repetition_penalty": 1.8, "bad_words_ids": [[1], [12]]},
        {
            "sequence_bias": [[[4], 3.0], [[2], 4.0]],
            "repetition_penalty": 0.8,
            "bad_words_ids": [[7]],
            "min_new_tokens": 9,
            "temperature": 2.0,
            "top_k": 12,
            "top_p": 0.97,
            "min_p": 0.01,
        },
        {
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.3,
            "sequence_bias": [[[0, 1], 2.0]],
            "top_p": 0.9,
        },
    ],
}


def main() -> None:
    rng = np.random.default_rng(0)
    candidates = [
        make_case(name, params, logits, rng)
        for name, grid in SETTINGS.items()
        for params in grid
        for logits in (spread(rng), ties(rng), extremes(rng))
    ]
    cases = [case for case in candidates if not splits_ties(case)]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    source = f"{versions}, float32; null is -inf; made by scripts/make_processor_goldens.py"
    lines = ",\n".join(json.dumps(case) for case in cases)
    PATH.write_text(f'{{"source": {json.dumps(source)}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} cases, {len(candidates) - len(cases)} left out: {PATH}")


def spread(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, VOCAB)) * 4


def ties(rng: np.random.Generator) -> np.ndarray:
    """Halves between -2 and 2, with zeros of both signs."""
    logits = rng.integers(-4, 5, (ROWS, VOCAB)) / 2
    return np.where((logits == 0) & (rng.random(logits.shape) < 0.5), -0.0, logits)


def extremes(rng: np.random.Generator) -> np.ndarray:
    """Some tokens hopeless, some banned already, a few far above the rest."""
    logits = rng.normal(size=(ROWS, VOCAB)) * 4
    places = rng.permuted(np.tile(np.arange(VOCAB), (ROWS, 1)), axis=1)
    values = [-np.inf, -np.inf, -np.inf, -1e30, -1e30, -3e4, -3e4, 90.0, 90.0]
    np.put_along_axis(logits, places[:, : len(values)], np.array(values), axis=1)
    return logits


def make_case(name: str, params: dict, logits: np.ndarray, rng: np.random.Generator) -> dict:
    # Numbers are rounded first, so that what is stored is what was processed.
    logits = np.array([[float(f"{value:.6g}") for value in row] for row in logits], np.float32)
    prompt_length = 4
    # Few different ids where text has to repeat itself, and no output yet where its beginning matters.
    ids = 3 if {"no_repeat_ngram_size", "sequence_bias", "bad_words_ids"} & params.keys() else VOCAB
    new = 0 if "begin_suppress_tokens" in params and rng.random() < 0.7 else int(rng.integers(1, 6))
    input_ids = rng.integers(0, ids, (ROWS, prompt_length + new))
    expected = process(params, input_ids, prompt_length, logits)
    return {
        "name": name,
        "params": {**params, "prompt_length": prompt_length, "eos_token_id": EOS},
        "input_ids": input_ids.tolist(),
        "logits": jsonable(logits),
        "expected": jsonable(expected),
    }


def process(params: dict, input_ids: np.ndarray, prompt_length: int, logits: np.ndarray) -> np.ndarray:
    """What `generate` makes of the logits when it samples with these settings."""
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    config = transformers.GenerationConfig(do_sample=True, **(off | params))
    config._eos_token_tensor = torch.tensor(EOS)
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(is_encoder_decoder=False),
        _merge_criteria_processor_list=lambda default, custom: default,
    )
    processors = transformers.GenerationMixin._get_logits_processor(
        model, config, input_ids_seq_length=prompt_length, device="cpu"
    )
    return processors(torch.tensor(input_ids), torch.tensor(logits)).numpy()


def splits_ties(case: dict) -> bool:
    """Whether a token that was dropped ties with the least one kept, in a case with top-p."""
    params = case["params"]
    if "top_p" not in params:
        return False
    before = process({**params, "top_p": 1.0, "min_p": None}, *inputs(case))
    through = process({**params, "min_p": None}, *inputs(case))
    for row_before, row in zip(before, through, strict=True):
        kept = row > -np.inf
        if np.any(row_before[~kept] == row_before[kept].min()):
            return True
    return False


def inputs(case: dict) -> tuple[np.ndarray, int, np.ndarray]:
    logits = [[-np.inf if value is None else value for value in row] for row in case["logits"]]
    return np.array(case["input_ids"]), case["params"]["prompt_length"], np.array(logits, np.float32)


def jsonable(logits: np.ndarray) -> list[list[float | None]]:
    """Shortest decimals that give the same float32; null for -inf."""
    return [[None if value == -np.inf else float(str(value)) for value in row] for row in logits]


if __name__ == "__main__":
    main()
