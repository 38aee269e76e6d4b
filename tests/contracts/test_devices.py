"""What the compilers of the devices that we are run on make of the pairs in `configs/`.

Widths, batch and capacity are real; where a pair is large, its target has two layers and its draft has one,
since layers are alike and each takes half a minute to compile. One model has its full depth.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest

from specjax.decoding import Decoder
from specjax.drafts import Model, Ngram
from specjax.pairs import read_pair
from specjax.plan import plan
from specjax.plan.abstract import abstract_model, device_bytes, model_config, place_weights
from specjax.plan.devices import placement

pytestmark = pytest.mark.contracts

CONFIGS = Path(__file__).parents[2] / "configs"
SHALLOW = (2, 1)  # layers of target and draft


@dataclasses.dataclass(frozen=True)
class FullDepth:
    """Bytes on one device of a pair that was compiled with a few of its layers."""

    caches: int
    total: int


def planned(name: str, device: str, *, layers=SHALLOW, passes=(), **changes):
    """The plan of a pair in `configs/`, cut to some layers, and what it would hold with all of them."""
    pair = dataclasses.replace(read_pair(CONFIGS / f"{name}.toml"), **changes)
    configs = [model_config(model) for model in (pair.target, pair.draft) if model != "ngram"]
    depths = layers or [config.num_layers for config in configs]

    def decoder(configs) -> Decoder:
        target, *drafts = (abstract_model(config, jnp.bfloat16) for config in configs)
        return Decoder(target, Model(drafts[0]) if drafts else Ngram(), pair.config)

    cut = [
        dataclasses.replace(config, num_layers=depth) for config, depth in zip(configs, depths, strict=False)
    ]
    made = plan(
        decoder(cut), device, batch=pair.batch, prompt_width=pair.prompt_width, mesh=pair.mesh, passes=passes
    )
    memory = made.memory
    sizes = (memory.target_cache, memory.draft_cache)
    caches = sum(
        size * config.num_layers // depth for config, size, depth in zip(configs, sizes, depths, strict=False)
    )
    weights = device_bytes(place_weights(decoder(configs)._weights, placement(device, pair.mesh)))
    rest = memory.other_state + (memory.padding or 0) + (memory.temporaries or 0)
    return made, FullDepth(caches=caches, total=weights + caches + rest)


def check_programs(made, full: FullDepth, *, write_loops: int, relaid_bytes: int = 0):
    """Nothing that a decoding program must not do.

    Args:
        full: temporaries and padding hardly depend on the depth, caches do.
        write_loops: how many may write rows: one for each pass that feeds a cache, none for each layer.
        relaid_bytes: temporaries that each may have beside, for weights in a layout of its own.
    """
    assert made.faults == []
    assert full.total <= made.memory.capacity
    start, run = made.programs
    for program in (start, run):
        assert program.copies == ()
        assert program.copies_once == ()
        assert program.host_transfers == ()
        assert program.temporary_bytes < 0.1 * full.caches + relaid_bytes
    assert run.unaliased == 0
    assert run.alias_bytes >= run.donated_bytes
    assert run.row_write_loops <= write_loops


def check_bytes(made):
    """What verification moves with every row at its longest, against weights and cache, each once."""
    [verify] = made.steps
    assert verify.traffic.unknown_loops == 0
    assert made.memory.target_cache < verify.traffic.read_bytes
    assert verify.traffic.total_bytes <= 1.5 * (made.memory.target_weights + made.memory.target_cache)


def test_a_large_pair_on_eight_chips(compiler_for):
    """Llama 3.1 8B with a draft of 1B, 32 rows of 4096 tokens."""
    made, full = planned("llama-3.1-8b-v5e-8", compiler_for("v5e:2x4"), passes=("verify",))
    # The target's write; of the draft's passes: catching up, the last tokens, each further one.
    check_programs(made, full, write_loops=4)
    check_bytes(made)


def test_a_large_pair_on_one_gpu(compiler_for):
    made, full = planned("llama-3.1-8b-h200", compiler_for("h200"), passes=("verify",))
    check_programs(made, full, write_loops=4)
    check_bytes(made)


def test_a_pair_too_large_for_one_host(compiler_for):
    made, full = planned("llama-3.1-70b-v6e-8", compiler_for("v6e:2x4"))
    check_programs(made, full, write_loops=4)


def test_vocabularies_of_different_widths(compiler_for):
    made, full = planned("qwen2.5-7b-v6e-1", compiler_for("v6e:2x2"))
    check_programs(made, full, write_loops=4)


def test_heads_that_do_not_fill_the_lanes(compiler_for):
    made, full = planned("smollm2-1.7b-v5e-1", compiler_for("v5e:2x2"))
    check_programs(made, full, write_loops=4)


def test_a_small_model_at_full_depth(compiler_for):
    made, full = planned(
        "smollm2-135m-ngram-cpu",
        compiler_for("v5e:2x2"),
        layers=None,
        batch=16,
        prompt_width=1024,
        capacity=2048,
        verify_widths=(),
    )
    # 576 wide weights do not fill the tiles of a TPU; programs lay them out anew, once.
    check_programs(made, full, write_loops=1, relaid_bytes=made.memory.target_weights)
