"""A quantized GGUF file with its weights written out in one dtype, so that all arms compute with the same."""

from __future__ import annotations

import os
import pathlib

_VIRTUAL = "GGUF."  # fields that the reader makes up from the header
_WRITER = ("general.architecture", "general.file_type", "general.quantization_version")


def expand(source: str | os.PathLike[str], target: str | os.PathLike[str], dtype: str) -> pathlib.Path:
    """Writes `target`: the metadata of `source`, matrices in `dtype`, vectors in float32.

    Args:
        dtype: `"float32"` or `"bfloat16"`.

    Returns:
        The target.
    """
    import gguf

    kind = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}[dtype]
    file_type = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}[dtype]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_file_type(file_type)
    for name, field in reader.fields.items():
        if not name.startswith(_VIRTUAL) and name not in _WRITER:
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(
                name, field.contents(), field.types[0], sub_type=field.types[-1] if array else None
            )
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        own = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return pathlib.Path(target)
