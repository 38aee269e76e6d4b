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
from specjax.plan.abstract import abstract_model, model_config

pytestmark = pytest.mark.contracts

CONFIGS = Path(__file__).parents[2] / "configs"
SHALLOW = (2, 1)  # layers of target and draft


def planned(name: str, device: str, *, layers=SHALLOW, **changes):
    """The plan of a pair in `configs/`, cut to a number of layers, and the bytes of its whole caches."""
    pair = dataclasses.replace(read_pair(CONFIGS / f"{name}.toml"), **changes)
    configs = [model_config(model) for model in (pair.target, pair.draft) if model != "ngram"]
    depths = layers or [config.num_layers for config in configs]

    def cut(config, depth):
        return abstract_model(dataclasses.replace(config, num_layers=depth), jnp.bfloat16)

    target, *drafts = map(cut, configs, depths)
    decoder = Decoder(target, Model(drafts[0]) if drafts else Ngram(), pair.config)
    made = plan(decoder, device, batch=pair.batch, prompt_width=pair.prompt_width, mesh=pair.mesh, passes=())
    sizes = (made.memory.target_cache, made.memory.draft_cache)
    return made, sum(
        size * config.num_layers // depth for config, size, depth in zip(configs, sizes, depths, strict=False)
    )


def check_programs(made, cache_bytes, *, write_loops: int, prefill_bytes: int = 0):
    """Nothing that a decoding program must not do.

    Args:
        cache_bytes: of both caches at full depth; temporaries hardly depend on the depth.
        write_loops: how many may write rows: one for each pass that feeds a cache, none for each layer.
        prefill_bytes: temporaries that a prefill may have beside.
    """
    assert made.faults == []
    start, run = made.programs
    for program in (start, run):
        assert program.copies == ()
        assert program.copies_once == ()
        assert program.host_transfers == ()
    assert start.temporary_bytes < 0.1 * cache_bytes + prefill_bytes
    assert run.temporary_bytes < 0.1 * cache_bytes
    assert run.unaliased == 0
    assert run.alias_bytes >= run.donated_bytes
    assert run.row_write_loops <= write_loops


def test_a_large_pair_on_eight_chips(compiler_for):
    """Llama 3.1 8B with a draft of 1B, 32 rows of 4096 tokens."""
    made, cache_bytes = planned("llama-3.1-8b-v5e-8", compiler_for("v5e:2x4"))
    # The target's write; of the draft's passes: catching up, the last tokens, each further one.
    check_programs(made, cache_bytes, write_loops=4)


def test_a_large_pair_on_one_gpu(compiler_for):
    made, cache_bytes = planned("llama-3.1-8b-h200", compiler_for("h200"))
    check_programs(made, cache_bytes, write_loops=4)


def test_vocabularies_of_different_widths(compiler_for):
    made, cache_bytes = planned("qwen2.5-7b-v6e-1", compiler_for("v6e:2x2"))
    check_programs(made, cache_bytes, write_loops=4)


def test_a_small_model_at_full_depth(compiler_for):
    made, cache_bytes = planned(
        "smollm2-135m-ngram-cpu",
        compiler_for("v5e:2x2"),
        layers=None,
        batch=16,
        prompt_width=1024,
        capacity=2048,
        verify_widths=(),
    )
    # 576 wide weights do not fill the tiles of a TPU; a prefill lays them out anew, once.
    check_programs(made, cache_bytes, write_loops=1, prefill_bytes=made.memory.target_weights)
