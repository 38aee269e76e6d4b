"""Model files in the GGUF format of llama.cpp, dequantized one tensor at a time.

llama.cpp names tensors its own way and, for the `llama` architecture, stores query and key rows in the order
of its interleaved rotary embedding; both are translated back to what Hugging Face checkpoints have.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np

from specjax.models.config import ModelConfig, RopeScaling

ARCHITECTURES = ("llama", "qwen2")
ROPE_SCALING_TYPES = ("none", "linear")

# Hugging Face name -> GGUF name, without the suffix .weight or .bias.
_TOP_LEVEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# What the reader raises for bytes that make no sense, depending on where it stumbles.
_DAMAGE = (ValueError, KeyError, IndexError, EOFError, OverflowError, TypeError, MemoryError, OSError)


class _BoundsCheckedReader(gguf.GGUFReader):
    """The reader, with its one byte access checked.

    The original slices past the end of a truncated file without noticing, and slices a memory map, which
    costs more than slicing a plain array: 3.9 s against 1.3 s for a vocabulary of 49,152 tokens.
    """

    _plain: np.ndarray | None = None

    def _get(self, offset, dtype, count=1, override_order=None):
        if self._plain is None:
            self._plain = self.data.view(np.ndarray)
        dtype = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        end = int(offset) + dtype.itemsize * int(count)
        if end > self._plain.size:
            raise EOFError(f"the file has {self._plain.size} bytes, but its contents reach byte {end}")
        return self._plain[int(offset) : end].view(dtype)


Tensors = Mapping[str, gguf.gguf_reader.ReaderTensor]


@dataclasses.dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file.

    Attributes:
        path: where it lies.
        config: the shapes and constants, read from its metadata.
        metadata: all key-value pairs of the header, arrays as lists.
        tensors: its tensors by GGUF name, still quantized and memory-mapped.
    """

    path: pathlib.Path
    config: ModelConfig
    metadata: Mapping[str, Any]
    tensors: Tensors

    def tensor(self, name: str) -> np.ndarray:
        """One tensor by its Hugging Face name, dequantized to float32 (float16 files too).

        Raises:
            ValueError: if the file lacks the tensor, stores it in a type that cannot be dequantized, or with
                rows that do not split into heads.
        """
        gguf_name = gguf_tensor_name(name)
        if gguf_name not in self.tensors:
            raise ValueError(f"{self.path}: tensor {gguf_name!r} ({name!r}) is missing from the file")
        tensor = self.tensors[gguf_name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ValueError(
                f"{self.path}: tensor {gguf_name!r} has type {kind}, which the gguf package cannot dequantize"
            ) from error
        values = values.astype(np.float32, copy=False)
        heads = {"attn_q": self.config.num_heads, "attn_k": self.config.num_kv_heads}
        role = gguf_name.split(".")[-2]
        if self.metadata["general.architecture"] != "llama" or role not in heads:
            return values
        try:
            return unpermute_heads(values, heads[role])
        except ValueError as error:
            raise ValueError(f"{self.path}: tensor {gguf_name!r}: {error}") from error


def open_gguf(path: str | pathlib.Path) -> GGUFFile:
    """Reads the header of a GGUF file; no weights are read yet.

    Raises:
        ValueError: if the file is missing, truncated or damaged, or if the model is of a kind that is not
            supported. The message names the file, the key, the value, and what is supported.
    """
    path = pathlib.Path(path)
    try:
        reader = _BoundsCheckedReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except _DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: not a GGUF file, or a damaged or truncated one ({reason})") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return GGUFFile(path, _read_config(_Metadata(path, metadata), tensors), metadata, tensors)


def gguf_tensor_name(name: str) -> str:
    """The GGUF name of a tensor, such as `blk.3.attn_q.weight` for `model.layers.3.self_attn.q_proj.weight`.

    Raises:
        ValueError: if the name is not that of a tensor of a Llama-family model.
    """
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{suffix}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if match and match[2] in _IN_LAYER:
        return f"blk.{match[1]}.{_IN_LAYER[match[2]]}.{suffix}"
    raise ValueError(f"{name!r} is not the name of a tensor of a Llama-family model")


def unpermute_heads(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Turns the row order of interleaved rotary embedding (pairs side by side) into that of split halves.

    Within each head of width D, row 2i becomes row i and row 2i + 1 becomes row D/2 + i.

    Args:
        rows: `[num_heads * D, in]`, or `[num_heads * D]` for a bias.
        num_heads: query or key heads.

    Raises:
        ValueError: if the rows do not split into that many heads of even width.
    """
    if rows.shape[0] % (2 * num_heads):
        raise ValueError(f"{rows.shape[0]} rows do not split into {num_heads} heads of even width")
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


@dataclasses.dataclass(frozen=True)
class _Metadata:
    """The metadata of a GGUF file, together with its path for messages."""

    path: pathlib.Path
    values: Mapping[str, Any]

    @property
    def architecture(self) -> str | None:
        return self.values.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """The value under `<architecture>.<key>`."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            state = "is missing" if value is None else f"is {value!r}"
            raise ValueError(f"{self.path}: {self.architecture}.{key} {state}; expected a number")
        return value

    def refuse(self, key: str, value: object, supported: str) -> ValueError:
        return ValueError(f"{self.path}: {key}={value!r} is not supported; supported: {supported}")


def _read_config(meta: _Metadata, tensors: Tensors) -> ModelConfig:
    _check_supported(meta, tensors)
    num_heads, hidden_size = meta.require("attention.head_count"), meta.require("embedding_length")
    head_dim = meta.get("attention.key_length") or hidden_size // max(num_heads, 1)
    fields: dict[str, Any] = {
        # The reader lists dimensions innermost first.
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "hidden_size": hidden_size,
        "intermediate_size": meta.require("feed_forward_length"),
        "num_layers": meta.require("block_count"),
        "num_heads": num_heads,
        "num_kv_heads": meta.get("attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "rms_norm_eps": meta.require("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.get("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(meta, tensors, head_dim),
        "tie_embeddings": "output.weight" not in tensors,
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "context_length": meta.require("context_length"),
        "eos_ids": _eos_ids(meta.values),
        "bos_id": meta.values.get("tokenizer.ggml.bos_token_id"),
    }
    try:
        return ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{meta.path}: {error}") from error


def _check_supported(meta: _Metadata, tensors: Tensors) -> None:
    """Refuses every setting that the transformer would silently compute otherwise."""
    if meta.architecture not in ARCHITECTURES:
        raise meta.refuse("general.architecture", meta.architecture, ", ".join(ARCHITECTURES))
    prefix = meta.architecture
    if meta.values.get("split.count", 1) > 1:
        raise meta.refuse("split.count", meta.values["split.count"], "1 (merge the parts with gguf-split)")
    if meta.get("expert_count", 0):
        raise meta.refuse(f"{prefix}.expert_count", meta.get("expert_count"), "0 (no mixture of experts)")
    window = meta.get("attention.sliding_window", 0)
    if 0 < window < meta.require("context_length"):
        raise meta.refuse(f"{prefix}.attention.sliding_window", window, "full attention")
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{meta.path}: tensor 'token_embd.weight' is missing from the file")
    if "blk.0.attn_output.bias" in tensors:
        raise meta.refuse("blk.0.attn_output.bias", "present", "biases of query, key and value only")


def _rope_scaling(meta: _Metadata, tensors: Tensors, head_dim: int) -> RopeScaling | None:
    prefix = meta.architecture
    rotated = meta.get("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise meta.refuse(f"{prefix}.rope.dimension_count", rotated, f"the head width, {head_dim}")
    kind = meta.get("rope.scaling.type", "none")
    if kind not in ROPE_SCALING_TYPES:
        raise meta.refuse(f"{prefix}.rope.scaling.type", kind, ", ".join(ROPE_SCALING_TYPES))
    if kind == "linear":
        return RopeScaling(kind="linear", factor=meta.require("rope.scaling.factor"))
    # Llama 3.1 has no key of its own: its rule is stored as the result, one divisor for each frequency.
    if "rope_freqs.weight" in tensors:
        divisors = tuple(float(d) for d in tensors["rope_freqs.weight"].data)
        return RopeScaling(kind="divisors", divisors=divisors)
    return None


def _eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """End of text, and end of turn where the file names it apart."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(metadata[key] for key in keys if metadata.get(key) is not None))
