"""Times plain and n-gram speculative decoding of real prompts, and transformers beside them.

    python scripts/bench_decode.py prompts.jsonl --task summarization
    python scripts/bench_decode.py prompts.jsonl --peer-python /path/to/python/with/torch

The file holds one JSON object a line with `prompt`, or Spec-Bench's `turns` (the first is used) and `task`.
Greedy, batch 1, the same number of new tokens in every arm, end-of-text ignored. The arms take turns on each
prompt, so that a busy machine slows all alike; a figure is the median over the repeats, and ratios are
medians of ratios within a turn. "Plain" scores one token a round, its fastest width.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from typing import Any

import jax
import numpy as np

import specjax
from specjax.models import default_model

_WIDTH_STEP = 64


class Arm:
    """A decoder; `run` gives prefill and decode seconds, and the tokens."""

    def __init__(
        self, model: Any, draft: Any, new_tokens: int, gamma: int, widths: tuple[int, ...] = ()
    ) -> None:
        config = specjax.DecodeConfig(max_new_tokens=new_tokens, gamma=gamma, verify_widths=widths)
        self.decoder = specjax.Decoder(model, draft, config)

    def run(self, ids: list[int], width: int) -> tuple[float, float, Any]:
        prompts = np.zeros((1, width), np.int32)
        prompts[0, : len(ids)] = ids
        begun = time.perf_counter()
        state = self.decoder.start(prompts, np.array([len(ids)], np.int32), stop=specjax.Stop(eos_ids=[]))
        jax.block_until_ready(state)
        prefilled = time.perf_counter()
        out = jax.block_until_ready(self.decoder.result(self.decoder.run_rounds(state)))
        return prefilled - begun, time.perf_counter() - prefilled, out


class Peer:
    """transformers in a process of its own."""

    def __init__(self, python: str, gguf: str, dtype: str) -> None:
        script = os.path.join(os.path.dirname(__file__), "peer_transformers.py")
        self.process = subprocess.Popen(
            [python, script, gguf, "--dtype", dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = self._read()["ready"]

    def run(self, ids: list[int], new_tokens: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ids": ids, "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        return self._read()["seconds"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                "the transformers process ended; run scripts/peer_transformers.py by hand to see why"
            )
        return json.loads(line)


def read_prompts(path: str, task: str | None, count: int) -> list[str]:
    prompts = []
    with open(path, encoding="utf-8") as file:
        for row in map(json.loads, file):
            if task is None or row.get("task") == task or row.get("category") == task:
                prompts.append(row["prompt"] if "prompt" in row else row["turns"][0])
    if not prompts:
        raise SystemExit(f"{path} holds no prompt with task {task!r}")
    return prompts[:count]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts")
    parser.add_argument("--task", help="only rows with this task or category")
    parser.add_argument("--count", type=int, default=4, help="prompts")
    parser.add_argument("--gammas", default="4", help="draft lengths, comma-separated")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default=default_model.NAME)
    parser.add_argument("--peer-python", help="an interpreter with torch, transformers and gguf")
    arguments = parser.parse_args()

    lm = specjax.load(arguments.model, dtype=arguments.dtype)
    gammas = [int(gamma) for gamma in arguments.gammas.split(",")]
    new_tokens = arguments.new_tokens
    arms = {"plain": Arm(lm.model, specjax.drafts.NoDraft(), new_tokens, 0)}
    for gamma in gammas:
        ngram = specjax.drafts.Ngram()
        arms[f"ngram {gamma}, one width"] = Arm(lm.model, ngram, new_tokens, gamma)
        if widths := specjax.power_widths(gamma):
            arms[f"ngram {gamma}, also {widths}"] = Arm(lm.model, ngram, new_tokens, gamma, widths)
    peer = None
    if arguments.peer_python:
        gguf = arguments.model if arguments.model.endswith(".gguf") else str(default_model.fetch())
        peer = Peer(arguments.peer_python, gguf, arguments.dtype)

    prompts = [
        lm.encode_chat(text) for text in read_prompts(arguments.prompts, arguments.task, arguments.count)
    ]
    width = -(-max(map(len, prompts)) // _WIDTH_STEP) * _WIDTH_STEP
    for arm in arms.values():  # compile
        arm.run(prompts[0], width)
    if peer:
        peer.run(prompts[0], 8)

    total: dict[str, list[float]] = {name: [] for name in (*arms, "transformers")}
    decode: dict[str, list[float]] = {name: [] for name in arms}
    per_round: dict[str, list[float]] = {name: [] for name in arms}
    for index, ids in enumerate(prompts):
        for _ in range(arguments.repeats):
            for name, arm in arms.items():
                prefill_seconds, decode_seconds, out = arm.run(ids, width)
                assert int(out.lengths[0]) == new_tokens
                total[name].append(prefill_seconds + decode_seconds)
                decode[name].append(decode_seconds)
                per_round[name].append(float(out.stats.mean_tokens_per_round[0]))
            if peer:
                total["transformers"].append(peer.run(ids, new_tokens))
        print(f"prompt {index + 1}/{len(prompts)}: {len(ids)} tokens", flush=True)

    print(
        f"\n{lm.name}, {arguments.dtype}, greedy, batch 1, {new_tokens} new tokens, jax {jax.__version__}",
        end="",
    )
    print(f", {peer.version}" if peer else "")
    print(f"load average at the end {os.getloadavg()[0]:.1f}\n")
    print("| arm | tokens/s decode | with prefill | tokens per round | x plain, decode | with prefill |")
    print("|---|---|---|---|---|---|")
    for name in arms:
        print(
            f"| {name} | {new_tokens / statistics.median(decode[name]):.1f} "
            f"| {new_tokens / statistics.median(total[name]):.1f} | {statistics.mean(per_round[name]):.2f} "
            f"| {ratio(decode['plain'], decode[name]):.2f} | {ratio(total['plain'], total[name]):.2f} |"
        )
    if peer:
        peer_speed = new_tokens / statistics.median(total["transformers"])
        relative = ratio(total["plain"], total["transformers"])
        print(f"| transformers | | {peer_speed:.1f} | 1.00 | | {relative:.2f} |")


def ratio(base: list[float], other: list[float]) -> float:
    """How many times faster `other` is than `base`: the median over turns."""
    return statistics.median(b / o for b, o in zip(base, other, strict=True))


if __name__ == "__main__":
    main()
