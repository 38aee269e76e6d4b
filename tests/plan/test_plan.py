"""Plans of a tiny pair for the CPU, whose compiler is always there."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest
from flax import nnx

import specjax
from specjax.hlo.traffic import Traffic
from specjax.models.sharding import weight_shardings
from specjax.models.transformer import Transformer
from specjax.plan import Compiled, Memory, Plan, Step, compilation, largest_batch, plan
from specjax.plan.abstract import abstract_decoder, abstract_model, model_config
from specjax.plan.devices import describe
from tests.tiny_llama import CONFIG

BATCH, PROMPT, CAPACITY, GAMMA = 2, 16, 600, 2
DECODING = specjax.DecodeConfig(max_new_tokens=8, gamma=GAMMA, capacity=CAPACITY)
DRAFT = dataclasses.replace(CONFIG, num_layers=1)


@pytest.fixture(scope="module")
def planned():
    draft = specjax.drafts.Model(abstract_model(DRAFT, "float32"))
    decoder = specjax.Decoder(abstract_model(CONFIG, "float32"), draft, DECODING)
    return plan(decoder, "cpu", batch=BATCH, prompt_width=PROMPT)


def parameters(config):
    layer = config.hidden_size * (2 + 3 * config.intermediate_size)
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    layer += heads * config.head_dim * config.hidden_size
    return config.vocab_size * config.hidden_size + config.hidden_size + config.num_layers * layer


def test_memory_is_what_the_shapes_say(planned):
    slots = 1024  # two blocks
    row = 2 * slots * CONFIG.num_kv_heads * CONFIG.head_dim * 4
    assert planned.memory.target_weights == 4 * parameters(CONFIG)
    assert planned.memory.draft_weights == 4 * parameters(DRAFT)
    assert planned.memory.target_cache == 2 * BATCH * row
    assert planned.memory.draft_cache == BATCH * row
    assert 4 * BATCH * CAPACITY < planned.memory.other_state < 40 * BATCH * CAPACITY
    parts = dataclasses.asdict(planned.memory)
    del parts["capacity"]
    assert planned.memory.total == sum(parts.values())
    assert planned.memory.fits


def test_the_state_that_is_given_away_is_reused(planned):
    start, run = planned.programs
    assert (start.name, run.name) == ("start", "run")
    held = planned.memory.target_cache + planned.memory.draft_cache + planned.memory.other_state
    assert run.donated_bytes == held
    assert run.alias_bytes >= run.donated_bytes
    assert run.unaliased == 0
    assert start.donated_bytes == 0


def test_passes_are_counted(planned):
    plain, verify, draft, whole = planned.steps
    assert [step.name for step in planned.steps] == ["plain", "verify", "draft", "round"]
    weights = parameters(CONFIG) - CONFIG.num_layers * 2 * CONFIG.hidden_size - CONFIG.hidden_size
    # Two rows, of one token or three: the weights' products, and attention, which is more.
    for step, tokens in ((plain, 1), (verify, 1 + GAMMA)):
        assert 2 * BATCH * tokens * weights <= step.traffic.flops < 4 * BATCH * tokens * weights + 1e8
    assert draft.traffic.flops < plain.traffic.flops < verify.traffic.flops < whole.traffic.flops
    valid = (CAPACITY - GAMMA - 2) / 1024
    assert plain.ideal_bytes == planned.memory.target_weights + valid * planned.memory.target_cache
    assert whole.ideal_bytes == verify.ideal_bytes + GAMMA * draft.ideal_bytes
    assert all(step.excess > 0.5 for step in planned.steps)


def test_no_time_is_predicted_for_a_cpu(planned):
    assert all(step.seconds is None for step in planned.steps)
    assert planned.speedups == {}


def test_a_decoder_with_real_weights_has_the_same_plan(planned):
    target = Transformer(CONFIG, rngs=nnx.Rngs(0))
    draft = specjax.drafts.Model(Transformer(DRAFT, rngs=nnx.Rngs(1)))
    decoder = specjax.Decoder(target, draft, DECODING)
    mine = decoder.plan("cpu", batch=BATCH, prompt_width=PROMPT, passes=())
    assert mine.memory == planned.memory
    assert mine.steps == ()


@pytest.mark.parametrize("devices, split", ((2, True), (9973, False)))
def test_a_mesh_that_no_weight_divides_by_is_known(devices, split):
    mesh = jax.sharding.AbstractMesh((devices,), ("model",))
    weights = nnx.state(abstract_model(CONFIG, "float32"))
    shardings = weight_shardings(weights, mesh)
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), weights, shardings)
    assert compilation._is_split(placed) == split


@pytest.mark.parametrize("argument", ["batch", "prompt_width"])
def test_sizes_are_checked(argument):
    decoder = specjax.Decoder(abstract_model(CONFIG, "float32"), None, DECODING)
    sizes = {"batch": 1, "prompt_width": 16, argument: 0}
    with pytest.raises(ValueError, match=f"{argument} is 0; expected an integer of at least 1"):
        plan(decoder, "cpu", **sizes)


def test_the_largest_batch_needs_a_known_memory():
    decoder = specjax.Decoder(abstract_model(CONFIG, "float32"), None, DECODING)
    with pytest.raises(ValueError, match="memory of cpu is not known"):
        largest_batch(decoder, "cpu", prompt_width=16)


@pytest.mark.parametrize("rows_that_fit", [1, 7, 50])
def test_the_largest_batch_is_found(monkeypatch, rows_that_fit):
    """A device that holds so many rows and not one more, whose memory is dearer for large batches."""
    fixed, capacity = 1000.0, describe("v5e:2x2").memory_bytes

    def planned(self, mesh, passes):
        full = capacity if self.batch > rows_that_fit else capacity - fixed
        memory = dataclasses.replace(MEMORY, target_cache=int(full * min(self.batch / rows_that_fit, 2)))
        return dataclasses.replace(MADE, batch=self.batch, memory=memory)

    monkeypatch.setattr(compilation, "placement", lambda name, mesh: None)
    monkeypatch.setattr(compilation._Planner, "__init__", lambda self, *a: setattr(self, "batch", a[3]))
    monkeypatch.setattr(compilation._Planner, "plan", planned)
    assert largest_batch(None, "v5e:2x2", prompt_width=16).batch == rows_that_fit


MEMORY = Memory(
    target_weights=500,
    draft_weights=500,
    target_cache=0,
    draft_cache=0,
    other_state=0,
    padding=0,
    temporaries=0,
    capacity=describe("v5e:2x2").memory_bytes,
)
STEP = Step(name="plain", traffic=Traffic(read_bytes=4), ideal_bytes=2, seconds=0.01, compile_seconds=1)
MADE = Plan(
    device="v5e:2x2",
    mesh={},
    batch=1,
    prompt_width=16,
    capacity=32,
    gamma=4,
    memory=MEMORY,
    steps=(STEP, dataclasses.replace(STEP, name="round", seconds=0.02)),
)
RUN = Compiled(
    name="run",
    compile_seconds=1,
    argument_bytes=1,
    temporary_bytes=1,
    donated_bytes=1,
    alias_bytes=1,
    unaliased=0,
    copies=(),
    copies_once=(),
    host_transfers=(),
    row_write_loops=1,
)


def test_speedups_follow_from_times():
    tokens, speedup = MADE.speedups[0.5]
    assert (tokens, speedup) == (1.9375, 1.9375 / 2)


def test_faults_are_named():
    assert MADE.faults == []
    assert dataclasses.replace(MADE, programs=(RUN,)).faults == []
    full = dataclasses.replace(MADE, memory=dataclasses.replace(MEMORY, temporaries=int(17e9)))
    assert full.faults == ["does not fit: needs 17.00 GB of 16.00"]
    refused = dataclasses.replace(MADE, refused="out of memory")
    assert refused.faults == ["the compiler refuses: out of memory"]
    bad = dataclasses.replace(RUN, copies=("copy f32[2]",), host_transfers=("send",), unaliased=3)
    [copy, transfer, unaliased] = dataclasses.replace(MADE, programs=(bad,)).faults
    assert copy == "run: copy f32[2]"
    assert transfer == "run talks to the host: send"
    assert unaliased == "run: 3 arrays of the donated state are copied"


def test_a_plan_can_be_written_as_json(planned):
    written = json.loads(json.dumps(planned.to_json()))
    assert written["memory"]["target_cache"] == planned.memory.target_cache
    assert written["steps"][0]["traffic"]["flops"] == planned.steps[0].traffic.flops
    assert json.loads(json.dumps(MADE.to_json()))["speedups_by_model"][0]["speedup"] == 1.9375 / 2


def test_abstract_models_hold_no_memory(tmp_path):
    leaves = jax.tree.leaves(nnx.state(abstract_model(CONFIG, "bfloat16")))
    assert leaves
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def test_shapes_come_from_a_config_alone(tmp_path, goldens):
    (tmp_path / "config.json").write_text((goldens / "tiny_llama3" / "config.json").read_text())
    assert model_config(str(tmp_path)) == model_config(str(goldens / "tiny_llama3"))
    for draft in ("ngram", "none", str(tmp_path)):
        decoder = abstract_decoder(str(tmp_path), draft, DECODING, dtype="auto")
        assert decoder.target.embedding.dtype == "bfloat16"
    with pytest.raises(ValueError, match=r"model is 'no/such'; expected a directory"):
        model_config("no/such")
