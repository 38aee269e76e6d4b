"""Compares the default model in float32 with reference logits in a JSON file.

    python scripts/check_model_cases.py cases.json

The file holds {"cases": [...]}; each case has prompt, input_ids, greedy_ids, and positions. A position counts
through prompt and greedy tokens together, and has top5_ids, top5_logits and logsumexp. Checked are the ids of
the chat template, the argmax at every greedy token up to the first near-tie, and the logits at each position.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
from flax import nnx

import specjax.models

NEAR_TIE = 1e-3
TOLERANCE = 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=pathlib.Path, help="JSON file with reference logits")
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="name or path (default: %(default)s)"
    )
    arguments = parser.parse_args()
    cases = json.loads(arguments.cases.read_text(encoding="utf-8"))["cases"]
    lm = specjax.models.load(arguments.model, dtype="float32")
    score = nnx.jit(_score)
    failures = [problem for case in cases for problem in check_case(lm, score, case)]
    print("\n".join(failures) or f"all {len(cases)} cases agree")
    sys.exit(bool(failures))


def check_case(lm: specjax.models.LanguageModel, score, case: dict) -> list[str]:
    """What disagrees in one case; prints the largest differences."""
    prompt, greedy = case["input_ids"], case["greedy_ids"]
    problems = [] if lm.encode_chat(case["prompt"]) == prompt else ["the chat template gives other ids"]
    ids = np.array(prompt + greedy, np.int32)
    padded = np.pad(ids, (0, -len(ids) % 64))  # few shapes, few compilations
    logits = np.asarray(score(lm.model, jnp.asarray(padded)[None]))[0, : len(ids)]

    compared, wrong = compare_greedy(logits[len(prompt) - 1 : -1], greedy)
    problems += [f"greedy token {index} differs" for index in wrong]
    worst_logit = worst_sum = 0.0
    for entry in case["positions"]:
        row = logits[entry["position"]]
        worst_logit = max(worst_logit, np.abs(row[entry["top5_ids"]] - entry["top5_logits"]).max())
        worst_sum = max(worst_sum, abs(np.logaddexp.reduce(row.astype(np.float64)) - entry["logsumexp"]))
        if not same_order(row, entry["top5_ids"]):
            problems.append(f"position {entry['position']}: the five largest differ")
    if max(worst_logit, worst_sum) > TOLERANCE:
        problems.append(f"logits differ by {worst_logit:.2g}, logsumexp by {worst_sum:.2g}")
    title = repr(case["prompt"][:50])
    print(
        f"{title}: {compared} of {len(greedy)} greedy ids, {len(case['positions'])} positions; "
        f"largest difference: logits {worst_logit:.2g}, logsumexp {worst_sum:.2g}"
    )
    return [f"{title}: {problem}" for problem in problems]


def compare_greedy(logits: np.ndarray, greedy: list[int]) -> tuple[int, list[int]]:
    """How many tokens precede the first near-tie, and which of them are not the argmax of `logits` [E, V]."""
    runner_up, best = np.sort(logits, axis=-1)[:, -2:].T
    near_ties = np.flatnonzero(best - runner_up < NEAR_TIE)
    compared = int(near_ties[0]) if near_ties.size else len(greedy)
    return compared, [i for i in range(compared) if logits[i].argmax() != greedy[i]]


def same_order(row: np.ndarray, top_ids: list[int]) -> bool:
    """Whether these are the largest of `row` [V], in this order up to near-ties."""
    largest = np.sort(row)[::-1][: len(top_ids)]
    return bool(np.all(np.abs(row[top_ids] - largest) < NEAR_TIE))


def _score(model, tokens):
    positions = jnp.arange(tokens.shape[1])[None]
    hidden, _, _ = model(tokens, positions, model.init_cache(1, tokens.shape[1]))
    return model.logits(hidden)


if __name__ == "__main__":
    main()
