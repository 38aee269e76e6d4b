"""What speculation costs on the accelerator at hand, in a few minutes, without a download.

    python scripts/device_check.py --out results

Two models with random weights in shapes that fit the device; tokens are accepted at given rates, not by the
models ("synthetic acceptance"). Measures the steps of target and draft, whole decoding against plain decoding
and against the cost model, the host's gap between rounds, and memory against the compiler's plan; and checks
that greedy text is plain decoding's and that a small model's samples have its law. Parts that the time does
not suffice for are named. Prints text; with --out also device_check.json and device_check.png.

The exit code is 1 if an exactness check fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.bench.synthetic import LABEL
from specjax.bench.timing import environment
from specjax.decoding import Decoder, DecodeState
from specjax.drafts import Model
from specjax.models import ModelConfig, Transformer
from specjax.models.checkpoint import read_config
from specjax.models.dtype import resolve_dtype
from specjax.tune import device

SHAPES = pathlib.Path(__file__).parents[1] / "configs" / "models"
# Largest first. The weights of a pair may take this much of the device; the rest is for caches.
PAIRS = (("Llama-3.1-8B", "Llama-3.2-1B"), ("SmolLM2-1.7B", "SmolLM2-135M"))
WEIGHTS_SHARE = 0.6
RATES = (0.8, 0.75, 0.7, 0.65)  # acceptance by draft position


class Budget:
    """Runs parts while there is time, and remembers what they found and which were left out."""

    def __init__(self, seconds: float) -> None:
        self.found: dict[str, Any] = {}
        self.missing: list[str] = []
        self._seconds = seconds
        self._begun = time.perf_counter()
        self._longest = 0.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begun

    def run(self, name: str, part: Callable[[], dict[str, Any]]) -> None:
        """A part starts only if the longest one so far would still fit."""
        if self.elapsed + self._longest > self._seconds:
            self.missing.append(name)
            print(f"{self.elapsed:5.0f} s  {name}: left out, the time is spent")
            return
        begun = self.elapsed
        print(f"{begun:5.0f} s  {name} ...", flush=True)
        self.found[name] = part()
        self._longest = max(self._longest, self.elapsed - begun)
        for key, value in self.found[name].items():
            print(f"         {key}: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def weight_bytes(config: ModelConfig, dtype: Any) -> int:
    model = nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(nnx.state(model)))


def choose_shapes(quick: bool) -> tuple[str, ModelConfig, ModelConfig, Any]:
    """The largest pair that fits: name, target, draft, dtype."""
    if quick:
        tiny = ModelConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4,
                           num_kv_heads=2, head_dim=8, tie_embeddings=True)  # fmt: skip
        return "tiny", tiny, dataclasses.replace(tiny, num_layers=1), jnp.float32
    if (room := device.device_memory().get("bytes_limit")) is not None:
        for names in PAIRS:
            target, draft = (read_config(SHAPES / name) for name in names)
            if sum(weight_bytes(config, jnp.bfloat16) for config in (target, draft)) < WEIGHTS_SHARE * room:
                return " + ".join(names), target, draft, jnp.bfloat16
    target = read_config(SHAPES / "SmolLM2-135M")
    draft = dataclasses.replace(target, num_layers=target.num_layers // 5)
    return "SmolLM2-135M + a fifth of its layers", target, draft, resolve_dtype("auto")


def write_figure(found: dict[str, Any], title: str, path: pathlib.Path) -> None:
    """Steps by part and batch, speed-up against the cost model, memory. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    parts, speed, used = figure.subplots(1, 3)
    for name, values in found.items():
        batch = name.rpartition(" ")[2]
        if name.startswith("parts of a round"):
            parts.plot(list(values), list(values.values()), marker="o", label=f"batch {batch}")
        elif name.startswith("speed"):
            spread = [[values["measured_speedup"] - values["measured_low"]],
                      [values["measured_high"] - values["measured_speedup"]]]  # fmt: skip
            speed.errorbar([f"batch {batch}"], values["measured_speedup"], yerr=spread, fmt="o", color="C0")
            speed.scatter([f"batch {batch}"], values["predicted_speedup"], marker="x", color="C1")
        elif name.startswith("memory"):
            kept = {key: value for key, value in values.items() if key.endswith("_gb")}
            used.barh([f"{key.removesuffix('_gb')} {batch}" for key in kept], list(kept.values()))
    parts.set(ylabel="ms", title="parts of a round", ylim=(0, None))
    parts.tick_params(axis="x", rotation=30)
    speed.axhline(1, color="0.7")
    speed.set(title="synthetic acceptance: o measured, x predicted", ylabel="speed-up", ylim=(0, None))
    used.set(title="memory", xlabel="GB; number: batch")
    if parts.get_legend_handles_labels()[0]:
        parts.legend()
    figure.suptitle(title)
    figure.savefig(path)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, help="folder for device_check.json and device_check.png")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no part is started")
    parser.add_argument("--batches", default="", help="comma-separated; default 1,8 (on CPUs 1,4)")
    parser.add_argument("--quick", action="store_true", help="a tiny pair: whether the script works")
    arguments = parser.parse_args(argv)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)

    budget = Budget(arguments.budget)
    where = environment()
    name, target, draft, dtype = choose_shapes(arguments.quick)
    pair = f"{name}, {jnp.dtype(dtype).name}"
    print(f"{where['device']} ({where['backend']}), jax {where['jax']}: {pair}, gamma {len(RATES)}")
    print(f"speeds are of {LABEL}: {RATES}\n")
    case = device.Case(
        target=Transformer(target, dtype=dtype, rngs=nnx.Rngs(0)),
        draft=Transformer(draft, dtype=dtype, rngs=nnx.Rngs(1)),
        rates=RATES,
        prompt_width=16 if arguments.quick else 256,
        new_tokens=20 if arguments.quick else 64,
        repeats=2 if arguments.quick else 5,
        seconds=0.01 if arguments.quick else 0.2,
    )
    jax.block_until_ready(nnx.state((case.target, case.draft)))
    budget.run("law of a small model", lambda: device.check_law(1 << 12))
    batches = [int(word) for word in arguments.batches.split(",") if word]
    for batch in batches or ((1, 4) if where["backend"] == "cpu" else (1, 8)):
        check_batch(case, batch, budget)

    failed = [name for name, values in budget.found.items() if values.get("passed") is False]
    print(f"\n{budget.elapsed:.0f} s; " + (f"FAILED: {', '.join(failed)}" if failed else "nothing failed"))
    if budget.missing:
        print(f"left out for lack of time: {', '.join(budget.missing)}")
    if arguments.out is not None:
        report = {
            "pair": name,
            "dtype": jnp.dtype(dtype).name,
            "rates": RATES,
            "acceptance": LABEL,
            "environment": where,
            "seconds": budget.elapsed,
            "parts": budget.found,
            "missing": budget.missing,
        }
        (arguments.out / "device_check.json").write_text(
            json.dumps(report, indent=1) + "\n", encoding="utf-8"
        )
        title = f"{name}, {jnp.dtype(dtype).name}, {where['device']}; {LABEL}"
        write_figure(budget.found, title, arguments.out / "device_check.png")
    return 1 if failed else 0


def check_batch(case: device.Case, batch: int, budget: Budget) -> None:
    decoder = case.synthetic()
    states: list[DecodeState] = []

    def start() -> device.Found:
        begun = time.perf_counter()
        states.append(jax.block_until_ready(case.start(decoder, batch, temperature=1.0)))
        first = time.perf_counter()
        jax.block_until_ready(case.start(decoder, batch, temperature=1.0))
        return {"first_call_s": first - begun, "prefill_s": time.perf_counter() - first}

    budget.run(f"prefill, batch {batch}", start)
    if not states:
        budget.missing += [f"{name}, batch {batch}" for name in ("memory", "parts", "speed", "host gap")]
        return
    [state] = states
    budget.run(f"memory, batch {batch}", lambda: device.check_memory(decoder, state))
    budget.run(parts := f"parts of a round, batch {batch}", lambda: device.time_parts(case, state))
    if (found := budget.found.get(parts)) is not None:
        budget.run(f"speed, batch {batch}", lambda: device.compare_speed(case, decoder, state, found))
    budget.run(f"host gap, batch {batch}", lambda: device.host_gap(case, decoder, state))
    if batch > 1:  # one row shows one pattern of acceptance only
        real = Decoder(case.target, Model(case.draft), case.config)
        budget.run(
            f"greedy text, batch {batch}",
            lambda: device.check_greedy(case, case.start(real, batch, temperature=0.0)),
        )


if __name__ == "__main__":
    # Memory is planned by a compile of its own, which finds the program that then runs in this cache.
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        sys.exit(main())
