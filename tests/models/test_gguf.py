from __future__ import annotations

import json
import re

import gguf as gguf_package
import numpy as np
import pytest

from specjax.models import Transformer, checkpoint
from specjax.models.config import RopeScaling
from specjax.models.gguf import gguf_tensor_name, open_gguf, unpermute_heads
from specjax.models.layers import rope_frequencies


def refuses(*fragments):
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, fragments)))


def permute_heads(rows, num_heads):
    """What llama.cpp's converter does: row i of the first half and of the second become neighbours."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_gguf(path, directory, arch, metadata=None, tensors=None):
    """Converts a checkpoint directory as llama.cpp does; None as a value leaves an entry out."""
    opened = checkpoint.open_checkpoint(directory)
    config = opened.config
    values = {
        f"{arch}.block_count": config.num_layers,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.bos_token_id": config.bos_id,
        "tokenizer.ggml.eos_token_id": config.eos_ids[0],
    } | (metadata or {})
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    arrays = {}
    for name in opened.files:
        array = opened.tensor(name).astype(np.float32)
        kind = name.split(".")[-2]
        arrays[gguf_tensor_name(name)] = (
            permute_heads(array, heads[kind]) if arch == "llama" and kind in heads else array
        )
    if config.rope_scaling:
        plain = rope_frequencies(config.head_dim, config.rope_theta)
        scaled = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        arrays["rope_freqs.weight"] = (plain / scaled).astype(np.float32)
    _write(path, arch, values, arrays | (tensors or {}))
    return path


def _write(path, arch, values, arrays):
    writer = gguf_package.GGUFWriter(path, arch)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        if value is not None:
            add[type(value)](key, value)
    for name, array in arrays.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(tmp_path, goldens):
    def write(**changes):
        return write_gguf(tmp_path / "llama.gguf", goldens / "tiny_llama3", "llama", **changes)

    return write


@pytest.fixture
def qwen2(tmp_path, goldens):
    def write(**changes):
        return write_gguf(tmp_path / "qwen2.gguf", goldens / "tiny_qwen2", "qwen2", **changes)

    return write


# What is read.


@pytest.mark.parametrize("name, kind", [("tiny_llama3", "llama"), ("tiny_qwen2", "qwen2")])
def test_logits_equal_those_of_the_checkpoint(name, kind, goldens, score, request):
    opened = open_gguf(request.getfixturevalue(kind)())
    model = Transformer.from_weights(opened.config, opened.tensor, np.float32)
    expected = json.loads((goldens / name / "expected.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(score(model, expected["input_ids"]), expected["logits"], atol=1e-4)


@pytest.mark.parametrize("name, kind", [("tiny_llama3", "llama"), ("tiny_qwen2", "qwen2")])
def test_tensors_equal_those_of_the_checkpoint(name, kind, goldens, request):
    original = checkpoint.open_checkpoint(goldens / name)
    opened = open_gguf(request.getfixturevalue(kind)())
    for tensor in original.files:
        np.testing.assert_array_equal(opened.tensor(tensor), original.tensor(tensor).astype(np.float32))


def test_llama3_scaling_becomes_one_divisor_a_frequency(llama):
    scaling = open_gguf(llama()).config.rope_scaling
    assert scaling.kind == "divisors"
    assert scaling.divisors[0] == 1.0
    assert scaling.divisors[-1] == pytest.approx(8.0)


def test_linear_scaling(llama):
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert open_gguf(llama(metadata=metadata)).config.rope_scaling == RopeScaling(kind="linear", factor=2.0)


def test_config_of_a_qwen2(qwen2, goldens):
    assert open_gguf(qwen2()).config.tie_embeddings is False
    read = open_gguf(qwen2()).config
    original = checkpoint.read_config(goldens / "tiny_qwen2")
    assert read.rms_norm_eps == pytest.approx(original.rms_norm_eps)
    assert {**vars(read), "rms_norm_eps": None} == {**vars(original), "rms_norm_eps": None}


def test_end_of_turn_is_an_eos_too(llama):
    assert open_gguf(llama(metadata={"tokenizer.ggml.eot_token_id": 5})).config.eos_ids == (2, 5)
    assert open_gguf(llama(metadata={"tokenizer.ggml.eot_token_id": 2})).config.eos_ids == (2,)


def test_config_of_the_default_model(smollm2):
    config = smollm2.config
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (49152, 576, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_embeddings
    assert config.eos_ids == (2,)


def test_unpermute_is_the_inverse_of_the_converter():
    rows = np.arange(24.0).reshape(12, 2)
    np.testing.assert_array_equal(unpermute_heads(permute_heads(rows, 3), 3), rows)
    np.testing.assert_array_equal(unpermute_heads(np.arange(6), 1), [0, 2, 4, 1, 3, 5])


def test_an_unknown_tensor_name():
    with refuses("model.layers.0.self_attn.q_norm.weight", "Llama"):
        gguf_tensor_name("model.layers.0.self_attn.q_norm.weight")


# What is refused.


@pytest.mark.parametrize(
    "metadata, fragments",
    [
        ({"llama.attention.sliding_window": 64}, ["llama.attention.sliding_window=64", "full attention"]),
        ({"llama.expert_count": 8}, ["llama.expert_count=8", "mixture"]),
        ({"split.count": 3}, ["split.count=3", "gguf-split"]),
        ({"llama.rope.scaling.type": "yarn"}, ["llama.rope.scaling.type='yarn'", "linear"]),
        ({"llama.rope.dimension_count": 8}, ["llama.rope.dimension_count=8", "16"]),
        ({"llama.block_count": None}, ["llama.block_count is missing", "number"]),
        ({"llama.block_count": "two"}, ["llama.block_count is 'two'", "number"]),
        ({"llama.attention.head_count_kv": 3}, ["num_heads=4", "num_kv_heads=3"]),
    ],
)
def test_what_is_not_supported_is_refused_by_file_key_and_value(llama, metadata, fragments):
    path = llama(metadata=metadata)
    with refuses(str(path), *fragments):
        open_gguf(path)


def test_unknown_architecture(tmp_path):
    _write(tmp_path / "bert.gguf", "bert", {}, {"token_embd.weight": np.ones((4, 4), np.float32)})
    with refuses("bert.gguf", "general.architecture='bert'", "llama, qwen2"):
        open_gguf(tmp_path / "bert.gguf")


def test_a_bias_that_the_model_has_not(llama):
    path = llama(tensors={"blk.0.attn_output.bias": np.ones(48, np.float32)})
    with refuses(str(path), "blk.0.attn_output.bias"):
        open_gguf(path)


def test_missing_embedding(llama):
    path = llama(tensors={"token_embd.weight": None})
    with refuses(str(path), "token_embd.weight", "missing"):
        open_gguf(path)


def test_missing_tensor(llama):
    path = llama(tensors={"blk.1.ffn_up.weight": None})
    with refuses(str(path), "blk.1.ffn_up.weight", "missing"):
        open_gguf(path).tensor("model.layers.1.mlp.up_proj.weight")


def test_rows_that_do_not_fit_the_heads(llama):
    path = llama(tensors={"blk.0.attn_q.weight": np.ones((63, 48), np.float32)})
    with refuses(str(path), "blk.0.attn_q.weight", "63 rows", "4 heads"):
        open_gguf(path).tensor("model.layers.0.self_attn.q_proj.weight")


def test_a_type_that_cannot_be_dequantized(llama):
    path = llama(tensors={"output_norm.weight": np.ones(48, np.int8)})
    with refuses(str(path), "output_norm.weight", "I8"):
        open_gguf(path).tensor("model.norm.weight")


def test_missing_file(tmp_path):
    with refuses(str(tmp_path / "none.gguf"), "no such file"):
        open_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.001, 0.005, 0.5, 0.999999])
def test_truncated_file(llama, part):
    path = llama()
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with refuses(str(path), "damaged or truncated"):
        open_gguf(path)


def test_truncated_by_one_byte_of_weights(tmp_path, smollm2_path):
    """The last tensor of a real file is cut: only the bounds check can tell."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2_path.read_bytes()[:-1])
    with refuses(str(path), "98362431 bytes", "reach byte 98362432"):
        open_gguf(path)


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 60])
def test_damaged_header(llama, offset):
    path = llama()
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xfe" * 8
    path.write_bytes(content)
    with refuses(str(path), "damaged or truncated"):
        open_gguf(path)
