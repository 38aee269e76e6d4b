"""Decoding on four devices, which the process has to ask for before JAX starts: `test_sharding.py` runs it.

Prints a JSON list: for each mesh (with `--full` two of them, and a model as draft), whether what was
generated is what one device generates, and how the weights and the cache lie.
"""

import json
import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    # Values matter here and time does not: most of it is compiling.
    " --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import sys
import warnings

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType

import specjax
from specjax.drafts import Model, Ngram
from specjax.models import ModelConfig, Transformer
from specjax.testing import count_compiles

jax.config.update("jax_enable_x64", True)  # rounding of another order of summation decides nothing
warnings.simplefilter("error")  # a donation that could not be used

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
    context_length=256,
)
RNG = np.random.default_rng(0)
PROMPTS, LENGTHS = RNG.integers(0, 64, (4, 9)).astype(np.int32), np.array([9, 3, 5, 7], np.int32)
SAMPLING = specjax.Sampling(temperature=[0.0, 1.0, 1.0, 0.0], top_p=0.9, seed=3)
CONFIG = specjax.DecodeConfig(max_new_tokens=12, gamma=2, rule="coupled")


def model(seed, mesh=None):
    return Transformer(MODEL, dtype="float64", rngs=nnx.Rngs(seed), mesh=mesh)


def by_rounds(target, draft):
    decoder = specjax.Decoder(target, draft, CONFIG)
    state = decoder.run_rounds(decoder.start(PROMPTS, LENGTHS, sampling=SAMPLING), 1)
    with count_compiles() as compiles:
        state = decoder.run_rounds(state)
    return decoder.result(state), list(state.cache.layers[0].sharding.spec), compiles.count


def inside_a_jit(target, draft, mesh):
    graphdef, weights = nnx.split((target, draft.module))

    @jax.jit
    def program(weights, prompts, lengths):
        target, module = nnx.merge(graphdef, weights)
        return specjax.decode(target, prompts, lengths, draft=Model(module), config=CONFIG, sampling=SAMPLING)

    with jax.set_mesh(mesh):
        return program(weights, PROMPTS, LENGTHS)


def check(alone, sizes, names, kind, *, full):
    mesh = jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes))
    target = model(0, mesh)
    draft = Model(model(1, mesh)) if full else Ngram()
    stepwise, cache, compiles = by_rounds(target, draft)
    outs = {"run_rounds": stepwise}
    if full:
        outs["decode"] = inside_a_jit(target, draft, mesh)
    layer = target.layers[0]
    return {
        "mesh": dict(mesh.shape),
        "equal": {name: bool(np.array_equal(out.tokens, alone.tokens)) for name, out in outs.items()},
        "drafted": int(np.sum(stepwise.stats.drafted)),
        "compiles": compiles,
        "cache": cache,
        "weights": {
            name: list(getattr(layer, name)[...].sharding.spec)
            for name in ("qkv", "qkv_bias", "out", "gate_up", "down", "input_norm")
        },
    }


def main():
    full = "--full" in sys.argv
    # Under the coupled rule text does not depend on the draft.
    alone = specjax.generate(model(0), PROMPTS, LENGTHS, config=CONFIG, sampling=SAMPLING)
    results = [check(alone, (2, 2), ("data", "model"), AxisType.Explicit, full=full)]
    if full:
        results.append(check(alone, (4,), ("model",), AxisType.Auto, full=full))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
