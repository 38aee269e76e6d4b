"""A quantized file written out in one dtype holds the weights that loading it gives."""

import gguf
import numpy as np
import pytest

from specjax.bench.peers.expand import expand


@pytest.fixture
def quantized(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_types([1, 1, 3])
    writer.add_rope_freq_base(1e4)
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1
    matrix = gguf.quants.quantize(rng.normal(size=(8, 64)).astype(np.float32), kind)
    writer.add_tensor("matrix.weight", matrix, raw_dtype=kind)
    writer.add_tensor("norm.weight", rng.normal(size=8).astype(np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@pytest.mark.parametrize("dtype, kind", (("float32", "F32"), ("bfloat16", "BF16")))
def test_weights_and_metadata_stay(quantized, tmp_path, dtype, kind):
    old, new = gguf.GGUFReader(quantized), gguf.GGUFReader(expand(quantized, tmp_path / "new.gguf", dtype))
    for name, field in old.fields.items():
        if name != "general.file_type" and not name.startswith("GGUF."):
            assert new.fields[name].contents() == field.contents(), name
            assert new.fields[name].types == field.types, name
    assert {t.name: t.tensor_type.name for t in new.tensors} == {"matrix.weight": kind, "norm.weight": "F32"}
    for before, after in zip(old.tensors, new.tensors, strict=True):
        wanted = gguf.quants.dequantize(before.data, before.tensor_type)
        found = gguf.quants.dequantize(after.data, after.tensor_type)
        error = 0 if after.tensor_type.name == "F32" else 2.0**-8
        np.testing.assert_allclose(found, wanted, rtol=error, atol=0)
        assert after.shape.tolist() == before.shape.tolist()
