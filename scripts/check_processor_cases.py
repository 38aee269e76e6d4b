"""Compares specjax's processors with reference logits in a JSON file.

    python scripts/check_processor_cases.py cases.json

The file holds {"cases": [...]}; each case has name, params, input_ids [B, N], logits [B, V] and expected
[B, V] with null for -inf, as scripts/make_processor_goldens.py writes them. Each row of each case is one row
of a batch with settings of its own, so one program checks them all. Compared are the kept tokens, exactly,
and their log-probabilities; in cases without temperature and filters the processed logits too.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.sampling import Pipeline, RowSampling, Sampling, log_law, to_rows

TOLERANCE = 1e-5
LONGEST = 8  # tokens in a biased sequence
WARPERS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CONTEXT = {"prompt_length", "eos_token_id", "max_length", "order"}
KNOWN = {
    *WARPERS,
    "repetition_penalty",
    "sequence_bias",
    "bad_words_ids",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "forced_eos_token_id",
    "begin_suppress_tokens",
    *CONTEXT,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=pathlib.Path, help="JSON file with reference logits")
    cases = json.loads(parser.parse_args().cases.read_text(encoding="utf-8"))["cases"]
    rows = [row for case in cases for row in rows_of(case)]
    supported = [row for row in rows if is_supported(row)]
    problems = check(supported)
    print("checked:", summary(supported))
    print("not supported:", summary([row for row in rows if not is_supported(row)]))
    print("\n".join(problems) or "all checked rows agree")
    sys.exit(bool(problems))


def summary(rows: list[dict]) -> str:
    names = collections.Counter(row["name"] for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{name} {count}" for name, count in names.items())


def rows_of(case: dict) -> list[dict]:
    """The rows of a case, each with its params; null settings are off."""
    params = {key: value for key, value in case["params"].items() if value is not None}
    shared = {"name": case["name"], "params": params}
    columns = (case["input_ids"], case["logits"], case["expected"])
    return [
        {**shared, "ids": ids, "logits": floats(logits), "expected": floats(expected)}
        for ids, logits, expected in zip(*columns, strict=True)
    ]


def is_supported(row: dict) -> bool:
    """Whether specjax has these settings."""
    return set(row["params"]) <= KNOWN


def check(rows: list[dict]) -> list[str]:
    """What disagrees, a line for each row that does."""
    problems = []
    for row, processed, log_p in zip(rows, *run(rows), strict=True):
        expected = row["expected"]
        wrong = np.flatnonzero((log_p > -np.inf) != (expected > -np.inf)).tolist()
        error = largest_difference(log_p, log_softmax(expected))
        if not WARPERS.keys() & row["params"].keys():
            error = max(error, largest_difference(processed, expected))
        if wrong or error > TOLERANCE:
            case = f"{row['name']} {row['params']} after {row['ids']}"
            problems.append(f"{case}: kept differently: {wrong}; largest difference {error:.2g}")
    return problems


def run(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Processed logits and log-law float[rows, V] of all rows at once."""
    logits = np.array([row["logits"] for row in rows], np.float32)
    ids = [row["ids"] for row in rows]
    prompt_lengths = np.array([row["params"].get("prompt_length", len(row["ids"])) for row in rows], np.int32)
    outputs = [row_ids[length:] for row_ids, length in zip(ids, prompt_lengths, strict=True)]
    counts = np.array([len(output) for output in outputs], np.int32)
    return apply(settings_of(rows), padded(ids), prompt_lengths, padded(outputs), counts, logits)


@jax.jit
def apply(
    settings: RowSampling, prompts: Any, prompt_lengths: Any, outputs: Any, counts: Any, logits: Any
) -> tuple[jax.Array, jax.Array]:
    pipeline = Pipeline(longest_bias=LONGEST)
    states = pipeline.init(prompts, prompt_lengths, logits.shape[-1])
    states = pipeline.advance_block(states, outputs, counts)
    processed = pipeline.process(settings, states, logits)
    return processed, log_law(settings, processed)


def settings_of(rows: list[dict]) -> RowSampling:
    every = [row["params"] for row in rows]

    def column(name: str, default: float) -> np.ndarray:
        return np.array([params.get(name, default) for params in every])

    sampling = Sampling(
        **{name: column(name, default) for name, default in WARPERS.items()},
        repetition_penalty=column("repetition_penalty", 1.0),
        min_new_tokens=column("min_new_tokens", 0),
        no_repeat_ngram_size=column("no_repeat_ngram_size", 0),
        forced_last_token=column("forced_eos_token_id", -1),
        sequence_bias=[{tuple(ids): bias for ids, bias in p.get("sequence_bias", ())} for p in every],
        # One list for each row, also where none has any.
        banned_sequences=[params.get("bad_words_ids", []) for params in every],
        suppressed_first_tokens=[params.get("begin_suppress_tokens", []) for params in every],
    )
    eos = padded([np.atleast_1d(params.get("eos_token_id", ())) for params in every], fill=-1)
    prompts = column("prompt_length", 0)
    return to_rows(
        sampling,
        len(rows),
        eos_ids=jnp.asarray(eos),
        max_new_tokens=jnp.asarray(column("max_length", 1000) - prompts, jnp.int32),
        max_bias=8,
        max_bias_len=LONGEST,
    )


def padded(rows: list, fill: int = 0) -> np.ndarray:
    """int32[rows, longest]"""
    out = np.full((len(rows), max(map(len, rows))), fill, np.int32)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def floats(values: list) -> np.ndarray:
    return np.array([-np.inf if value is None else value for value in values], np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def largest_difference(values: Any, expected: np.ndarray) -> float:
    """Between finite numbers, absolute where they are small and relative where they are large."""
    values, expected = np.asarray(values, np.float64), expected.astype(np.float64)
    both = np.isfinite(values) & np.isfinite(expected)
    values, expected = values[both], expected[both]
    return float(np.max(np.abs(values - expected) / np.maximum(np.abs(expected), 1.0), initial=0.0))


if __name__ == "__main__":
    main()
