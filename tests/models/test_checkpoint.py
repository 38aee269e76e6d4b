from __future__ import annotations

import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.models import RopeScaling, checkpoint
from specjax.models.checkpoint import open_checkpoint


@pytest.fixture
def llama(tmp_path, goldens):
    """A copy of a checkpoint in two shards."""
    return shutil.copytree(goldens / "tiny_llama3", tmp_path / "llama")


@pytest.fixture
def qwen2(tmp_path, goldens):
    """A copy of a checkpoint in one file."""
    return shutil.copytree(goldens / "tiny_qwen2", tmp_path / "qwen2")


def edit(path, changes):
    """Changes keys of a JSON file; None removes one."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def config_of(directory, **changes):
    edit(directory / "config.json", changes)
    return checkpoint.read_config(directory)


def refuses(*fragments):
    """Expects a ValueError whose message holds all fragments, in this order."""
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, fragments)))


# Configuration.


def test_config_of_a_llama(llama):
    config = checkpoint.read_config(llama)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (128, 48, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.rms_norm_eps, config.rope_theta, config.context_length) == (1e-6, 10_000.0, 512)
    assert config.tie_embeddings
    assert not config.qkv_bias
    assert (config.eos_ids, config.bos_id) == ((2,), 1)
    assert config.rope_scaling == RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context_length=64,
    )


def test_config_of_a_qwen2(qwen2):
    config = checkpoint.read_config(qwen2)
    assert config.qkv_bias
    assert not config.tie_embeddings
    assert config.head_dim == 12
    assert config.rope_scaling is None


def test_key_value_heads_default_to_the_query_heads(qwen2):
    assert config_of(qwen2, num_key_value_heads=None).num_kv_heads == 4


def test_older_spelling_of_rope(llama):
    old = {"type": "linear", "factor": 4}
    config = config_of(llama, rope_parameters=None, rope_scaling=old, rope_theta=5e5)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(kind="linear", factor=4.0)


def test_rope_theta_without_scaling(qwen2):
    assert config_of(qwen2, rope_parameters=None, rope_theta=1_000_000).rope_theta == 1e6
    assert config_of(qwen2, rope_theta=None).rope_theta == 1e4


@pytest.mark.parametrize("value, expected", [(7, (7,)), ([7, 9], (7, 9))])
def test_eos_ids_of_the_generation_config_win(llama, value, expected):
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert checkpoint.read_config(llama).eos_ids == expected


def test_a_generation_config_without_eos_changes_nothing(llama):
    (llama / "generation_config.json").write_text("{}")
    assert checkpoint.read_config(llama).eos_ids == (2,)


def test_a_model_without_eos(llama):
    assert config_of(llama, eos_token_id=None).eos_ids == ()


def test_a_window_that_hides_nothing_is_accepted(llama, qwen2):
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert config_of(llama, **mistral, sliding_window=None).context_length == 512
    assert config_of(llama, **mistral, sliding_window=512).context_length == 512
    assert config_of(qwen2, sliding_window=64, use_sliding_window=False).context_length == 512


@pytest.mark.parametrize(
    "changes, fragments",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["architectures", "GPT2LMHeadModel", "LlamaForCausalLM"]),
        ({"architectures": None}, ["architectures", "None", "Qwen2ForCausalLM"]),
        ({"hidden_act": "gelu"}, ["hidden_act='gelu'", "silu"]),
        ({"attention_bias": True}, ["attention_bias=True", "Qwen2ForCausalLM"]),
        ({"mlp_bias": True}, ["mlp_bias=True"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["quant_method='gptq'", "GGUF"]),
        ({"quantization_config": "gptq"}, ["quantization_config is 'gptq'", "JSON object"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5", "1.0"]),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            ["rope_parameters.partial_rotary_factor=0.5", "1.0"],
        ),
        ({"sliding_window": 64}, ["sliding_window=64", "null"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "sliding_attention"]),
        ({"layer_types": 3}, ["layer_types is 3", "list"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures is 'LlamaForCausalLM'", "list"]),
        ({"rope_parameters": "linear"}, ["rope_parameters is 'linear'", "JSON object"]),
        ({"rope_parameters": None, "rope_theta": "10k"}, ["rope_theta is '10k'", "float"]),
        ({"rope_parameters": {"rope_type": "yarn"}}, ["rope_parameters.rope_type='yarn'", "llama3"]),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic"}},
            ["rope_scaling.rope_type='dynamic'", "linear"],
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, ["rope_parameters.factor is missing", "float"]),
        ({"vocab_size": None}, ["vocab_size is missing", "int"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers is '2'", "int"]),
        ({"rms_norm_eps": True}, ["rms_norm_eps is True", "float"]),
        ({"num_key_value_heads": 3}, ["num_heads=4", "num_kv_heads=3"]),
        ({"head_dim": 15}, ["head_dim=15", "even"]),
        ({"num_hidden_layers": 0}, ["num_layers=0", "at least 1"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id='</s>'", "integer"]),
    ],
)
def test_what_is_not_supported_is_refused_by_file_key_and_value(llama, changes, fragments):
    with refuses(str(llama / "config.json"), *fragments):
        config_of(llama, **changes)


def test_a_sliding_window_of_qwen2_in_use_is_refused(qwen2):
    with refuses(str(qwen2), "sliding_window=64"):
        config_of(qwen2, sliding_window=64, use_sliding_window=True)


def test_missing_config(tmp_path):
    with refuses(str(tmp_path), "config.json is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content, reason", [("{", "not readable as JSON"), ("[]", "expected a JSON object")])
def test_damaged_config(llama, content, reason):
    (llama / "config.json").write_text(content)
    with refuses(str(llama / "config.json"), reason):
        open_checkpoint(llama)


# Tensors.


def test_tensors_of_every_shard(llama):
    opened = open_checkpoint(llama)
    assert len(set(opened.files.values())) == 2
    for name in opened.files:
        assert opened.tensor(name).dtype == np.float32
    assert opened.tensor("model.layers.1.mlp.down_proj.weight").shape == (48, 96)


def test_bfloat16_keeps_its_bits(qwen2):
    tensor = open_checkpoint(qwen2).tensor("model.layers.0.self_attn.q_proj.bias")
    assert tensor.dtype == ml_dtypes.bfloat16
    content = (qwen2 / "model.safetensors").read_bytes()
    assert tensor.tobytes() in content


def test_missing_tensor(llama):
    with refuses(str(llama), "lm_head.weight", "missing"):
        open_checkpoint(llama).tensor("lm_head.weight")


def test_quantized_tensor(qwen2):
    tensors = load_file(qwen2 / "model.safetensors")
    tensors["model.norm.weight"] = np.ones(48, np.int8)
    save_file(tensors, qwen2 / "model.safetensors")
    with refuses("model.safetensors", "model.norm.weight", "I8", "BF16"):
        open_checkpoint(qwen2).tensor("model.norm.weight")


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated_file(qwen2, size):
    path = qwen2 / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with refuses(str(path), "damaged or truncated"):
        open_checkpoint(qwen2)


def test_garbage_file(qwen2):
    path = qwen2 / "model.safetensors"
    path.write_bytes(b"\xff" * 5000)
    with refuses(str(path), "damaged or truncated"):
        open_checkpoint(qwen2)


def test_a_file_that_vanishes_after_opening(qwen2):
    opened = open_checkpoint(qwen2)
    (qwen2 / "model.safetensors").unlink()
    with refuses("model.safetensors", "cannot read", "model.norm.weight"):
        opened.tensor("model.norm.weight")


def test_missing_shard(llama):
    shard = "model-00002-of-00002.safetensors"
    (llama / shard).unlink()
    with refuses(checkpoint.INDEX_FILE, shard, "missing"):
        open_checkpoint(llama)


def test_an_index_may_not_leave_its_directory(llama):
    edit(llama / checkpoint.INDEX_FILE, {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}})
    with refuses(checkpoint.INDEX_FILE, "../elsewhere.safetensors", "without directories"):
        open_checkpoint(llama)


def test_an_index_that_is_wrong_about_a_shard(llama):
    shard = "model-00001-of-00002.safetensors"
    edit(llama / checkpoint.INDEX_FILE, {"weight_map": {"nothing.weight": shard}})
    with refuses(checkpoint.INDEX_FILE, "nothing.weight", shard):
        open_checkpoint(llama)


def test_an_index_without_a_map(llama):
    (llama / checkpoint.INDEX_FILE).write_text("{}")
    with refuses(checkpoint.INDEX_FILE, "weight_map is None"):
        open_checkpoint(llama)
    edit(llama / checkpoint.INDEX_FILE, {"weight_map": {"model.norm.weight": 1}})
    with refuses(checkpoint.INDEX_FILE, "weight_map is {'model.norm.weight': 1}"):
        open_checkpoint(llama)


@pytest.mark.parametrize(
    "file, fragments",
    [
        ("pytorch_model.bin", ["pytorch_model.bin is a pickle", "safetensors"]),
        ("consolidated.00.pth", ["consolidated.00.pth is a pickle"]),
        ("model.gguf", ["model.gguf", "path of that file"]),
        ("README.md", ["no model.safetensors"]),
    ],
)
def test_a_directory_without_safetensors_says_what_it_holds(qwen2, file, fragments):
    (qwen2 / "model.safetensors").unlink()
    # Opening this pickle would fail loudly; nothing may try.
    (qwen2 / file).write_bytes(b"cos\nabort\n(tR.")
    with refuses(str(qwen2), *fragments):
        open_checkpoint(qwen2)
