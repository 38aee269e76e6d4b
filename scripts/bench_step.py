"""Times one scoring step of the default model's shape, by rows scored, dtype and cache capacity.

    python scripts/bench_step.py --dtypes bfloat16,float32 --times 1,5,9 --capacities 512,1024

Weights are random. A step scores T tokens for one row in which `--used` slots are taken, inside a compiled
loop that carries the cache, as decoding does. Arms are interleaved, so that a busy machine slows all of them
alike; printed are medians and minima, and medians of the ratio, turn by turn, to the first arm and to a pass
that only reads as many bytes as the weights have, the floor of any step.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import ModelConfig, Transformer
from specjax.sampling import likeliest

SMOLLM2_135M = ModelConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rope_theta=100_000.0,
    tie_embeddings=True,
    context_length=8192,
)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One cell of a table: `seconds` runs it once and gives the time of one step."""

    name: str
    seconds: Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--times", default="1,5,9", help="tokens scored per step")
    parser.add_argument("--capacities", default="512,1024")
    parser.add_argument("--used", type=int, default=300, help="slots taken in the cache")
    parser.add_argument("--chunks", default="64,128,256", help="prefill chunks; empty for none")
    parser.add_argument("--steps", type=int, default=10, help="steps per compiled loop")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    for dtype in arguments.dtypes.split(","):
        model = Transformer(SMOLLM2_135M, dtype=dtype, rngs=nnx.Rngs(0))
        arms = [
            step_arm(model, time=time, capacity=capacity, used=arguments.used, steps=arguments.steps)
            for time in numbers(arguments.times)
            for capacity in numbers(arguments.capacities)
        ]
        arms.append(reading_arm(sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))))
        *_, floor = runs = measured(arms, arguments.repeats)
        for arm, times in zip(arms, runs, strict=True):
            median, least = 1e3 * statistics.median(times), 1e3 * min(times)
            print(
                f"{dtype}  {arm.name:22}  median {median:6.1f} ms  minimum {least:6.1f} ms  "
                f"{ratio(times, runs[0]):5.2f} x first  {ratio(times, floor):5.2f} x reading"
            )
        chunks = numbers(arguments.chunks)
        arms = [step_arm(model, time=chunk, capacity=1024, used=arguments.used, steps=1) for chunk in chunks]
        for chunk, times in zip(chunks, measured(arms, arguments.repeats), strict=True):
            median, best = chunk / statistics.median(times), chunk / min(times)
            print(
                f"{dtype}  prefill chunk {chunk:3}  median {median:5.0f} tokens/s  best {best:5.0f} tokens/s"
            )


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def step_arm(model: Transformer, *, time: int, capacity: int, used: int, steps: int) -> Arm:
    """An arm that scores `time` tokens in each step; a single step is a prefill: head on the last token."""
    graphdef, weights = nnx.split(model)
    prefill = steps == 1

    def loop(weights, tokens, cache, used):
        def step(_, carry):
            tokens, cache = carry
            model = nnx.merge(graphdef, weights)
            positions = used + jnp.arange(time, dtype=jnp.int32)[None]
            hidden, _, pending = model(tokens, positions, cache)
            cache = model.commit(cache, pending, positions[:, 0], jnp.array([time]))
            logits = model.logits(hidden[:, -1:] if prefill else hidden)
            return likeliest(logits) + jnp.zeros_like(tokens), cache

        return jax.lax.fori_loop(0, steps, step, (tokens, cache))

    run = jax.jit(loop, donate_argnums=2)
    tokens = jnp.zeros((1, time), jnp.int32)
    state = {"cache": model.init_cache(1, capacity)}

    def seconds() -> float:
        start = clock()
        _, state["cache"] = jax.block_until_ready(run(weights, tokens, state["cache"], used))
        return (clock() - start) / steps

    return Arm(f"T={time:<3} capacity {capacity:5}", seconds)


def reading_arm(nbytes: int) -> Arm:
    """An arm that sums float32 numbers of so many bytes, which XLA does on all cores."""
    parts = [jnp.ones(nbytes // 4 // 8, jnp.float32) for _ in range(8)]
    run = jax.jit(lambda parts: sum(part.sum() for part in parts))

    def seconds() -> float:
        start = clock()
        jax.block_until_ready(run(parts))
        return clock() - start

    return Arm("reading the weights", seconds)


def ratio(times: tuple[float, ...], others: tuple[float, ...]) -> float:
    """The median over turns."""
    return statistics.median(mine / other for mine, other in zip(times, others, strict=True))


def measured(arms: list[Arm], repeats: int) -> list[tuple[float, ...]]:
    """The times of each arm over `repeats` rounds in which every arm runs once, after one that compiles."""
    for arm in arms:
        arm.seconds()
    return list(zip(*([arm.seconds() for arm in arms] for _ in range(repeats)), strict=True))


clock = time.perf_counter

if __name__ == "__main__":
    main()
