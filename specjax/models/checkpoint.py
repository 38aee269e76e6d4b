"""Checkpoint directories in the Hugging Face layout: `config.json` beside safetensors files.

Weights are memory-mapped and read one tensor at a time. Pickled weights (`.bin`, `.pt`) are refused: loading
one runs code from the file.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors

from specjax.models.config import ModelConfig, RopeScaling

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3")
TENSOR_DTYPES = ("F64", "F32", "F16", "BF16")
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint directory.

    Attributes:
        directory: where it lies.
        config: the shapes and constants, read from `config.json` and `generation_config.json`.
        files: for each tensor name, the safetensors file that holds it.
    """

    directory: pathlib.Path
    config: ModelConfig
    files: Mapping[str, pathlib.Path]

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, in the dtype that the file stores (bfloat16 as `ml_dtypes.bfloat16`).

        Raises:
            ValueError: if no file holds the tensor, the file is damaged, or its dtype is not a plain float.
        """
        if name not in self.files:
            raise ValueError(f"{self.directory}: tensor {name!r} is missing from the checkpoint")
        path = self.files[name]
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                dtype = file.get_slice(name).get_dtype()
                if dtype in TENSOR_DTYPES:
                    return file.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(f"{path}: cannot read tensor {name!r}: {error}") from error
        raise ValueError(f"{path}: tensor {name!r} has dtype {dtype}; supported: {', '.join(TENSOR_DTYPES)}")


def open_checkpoint(directory: str | pathlib.Path) -> Checkpoint:
    """Reads the configuration of a checkpoint directory and finds its tensors; no weights are read yet.

    Args:
        directory: holds `config.json` and either `model.safetensors` or `model.safetensors.index.json` with
            its shards.

    Raises:
        ValueError: if a file is missing or damaged, or if the model is of a kind that is not supported. The
            message names the file, the key, the value, and what is supported.
    """
    directory = pathlib.Path(directory)
    return Checkpoint(directory, read_config(directory), _find_tensors(directory))


def read_config(directory: pathlib.Path) -> ModelConfig:
    """The model configuration in a checkpoint directory (see `open_checkpoint` for the errors)."""
    path = directory / "config.json"
    raw = _JsonConfig(path, _read_json(path))
    architecture = _check_supported(raw)
    theta, scaling = _rope(raw)
    num_heads, hidden_size = raw.require("num_attention_heads"), raw.require("hidden_size")
    fields: dict[str, Any] = {
        "vocab_size": raw.require("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": raw.require("intermediate_size"),
        "num_layers": raw.require("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": raw.optional("num_key_value_heads", num_heads),
        "head_dim": raw.optional("head_dim", hidden_size // max(num_heads, 1)),
        "rms_norm_eps": raw.require("rms_norm_eps", float),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_embeddings": bool(raw.get("tie_word_embeddings")),
        "qkv_bias": architecture == "Qwen2ForCausalLM",
        "context_length": raw.require("max_position_embeddings"),
        "eos_ids": _eos_ids(raw, directory / "generation_config.json"),
        "bos_id": raw.optional("bos_token_id", None),
    }
    try:
        return ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _JsonConfig:
    """The object in a JSON file, together with the file's path for messages."""

    path: pathlib.Path
    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def require(self, key: str, kind: type = int) -> Any:
        """The number under `key`, as `kind` (`int` or `float`)."""
        value = self.values.get(key)
        # To Python a bool is an int, and JSON writes a whole float as an integer: widen the latter only.
        allowed = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed):
            state = "is missing" if key not in self.values else f"is {value!r}"
            raise ValueError(f"{self.path}: {key} {state}; expected {kind.__name__}")
        return kind(value)

    def optional(self, key: str, default: int | None) -> int | None:
        """The integer under `key`, or `default` if there is none."""
        return default if self.values.get(key) is None else self.require(key)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The object under `key`, empty if there is none."""
        return self._container(key, dict, "a JSON object")

    def sequence(self, key: str) -> list[Any]:
        """The list under `key`, empty if there is none."""
        return self._container(key, list, "a list")

    def _container(self, key: str, kind: type, description: str) -> Any:
        value = self.values.get(key)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise ValueError(f"{self.path}: {key} is {value!r}; expected {description}")
        return value

    def refuse(self, key: str, value: object, supported: str) -> ValueError:
        return ValueError(f"{self.path}: {key}={value!r} is not supported; supported: {supported}")


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent}: {path.name} is missing; not a checkpoint directory") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def _check_supported(raw: _JsonConfig) -> str:
    """The architecture, once every setting that the transformer does not follow has been refused."""
    architectures = raw.sequence("architectures")
    if not architectures or architectures[0] not in ARCHITECTURES:
        raise raw.refuse("architectures", raw.get("architectures"), ", ".join(ARCHITECTURES))
    architecture = architectures[0]
    activation = raw.get("hidden_act") or "silu"
    if activation != "silu":
        raise raw.refuse("hidden_act", activation, "silu")
    # Llama's attention_bias adds one to the output projection too, which qkv_bias does not have.
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise raw.refuse(key, True, "false (query, key and value biases: Qwen2ForCausalLM)")
    quantization = raw.mapping("quantization_config")
    if quantization:
        method = quantization.get("quant_method")
        raise raw.refuse("quantization_config.quant_method", method, "unquantized weights, or a GGUF file")
    _check_full_attention(raw, architecture)
    return architecture


def _check_full_attention(raw: _JsonConfig, architecture: str) -> None:
    """A window that covers the whole context changes nothing; Qwen2 names one and switches it off."""
    window = raw.optional("sliding_window", None)
    if architecture == "Qwen2ForCausalLM" and not raw.get("use_sliding_window"):
        window = None
    if window is not None and window < raw.require("max_position_embeddings"):
        raise raw.refuse("sliding_window", window, "null, or at least max_position_embeddings")
    unusual = [kind for kind in raw.sequence("layer_types") if kind != "full_attention"]
    if unusual and window is None:
        raise raw.refuse("layer_types", unusual, "full_attention")


def _rope(raw: _JsonConfig) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary embedding, from either spelling.

    Older files have `rope_theta` and `rope_scaling` (with `type` or `rope_type`); newer ones put both into
    `rope_parameters`.
    """
    key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    rope = raw.mapping(key)
    section = _JsonConfig(raw.path, {f"{key}.{name}": value for name, value in rope.items()})
    theta = 10_000.0
    # Which of the two places holds a setting depends on the version of transformers that wrote the file.
    for holder, prefix in ((raw, ""), (section, f"{key}.")):
        if holder.get(f"{prefix}rope_theta") is not None:
            theta = holder.require(f"{prefix}rope_theta", float)
        rotated = holder.get(f"{prefix}partial_rotary_factor")
        if rotated not in (None, 1.0):
            raise raw.refuse(f"{prefix}partial_rotary_factor", rotated, "1.0")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise raw.refuse(f"{key}.rope_type", kind, ", ".join(ROPE_TYPES))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=section.require(f"{key}.factor", float))
    return theta, RopeScaling(
        kind="llama3",
        factor=section.require(f"{key}.factor", float),
        low_freq_factor=section.require(f"{key}.low_freq_factor", float),
        high_freq_factor=section.require(f"{key}.high_freq_factor", float),
        original_context_length=section.require(f"{key}.original_max_position_embeddings"),
    )


def _eos_ids(raw: _JsonConfig, generation_path: pathlib.Path) -> tuple[int, ...]:
    """`generation_config.json` wins: chat models list their end-of-turn token there and only there."""
    path, value = raw.path, raw.get("eos_token_id")
    if generation_path.exists():
        generation = _read_json(generation_path)
        if generation.get("eos_token_id") is not None:
            path, value = generation_path, generation["eos_token_id"]
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ValueError(f"{path}: eos_token_id={value!r}; expected an integer or a list of integers")
    return tuple(ids)


def _find_tensors(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Which file holds each tensor; each file is opened once, so that a damaged one is found early."""
    if (directory / SINGLE_FILE).exists():
        path = directory / SINGLE_FILE
        return dict.fromkeys(_tensor_names(path), path)
    if (directory / INDEX_FILE).exists():
        return _read_index(directory / INDEX_FILE)
    raise ValueError(f"{directory}: no {SINGLE_FILE} and no {INDEX_FILE}{_hint(directory)}")


def _hint(directory: pathlib.Path) -> str:
    """What a directory without safetensors weights seems to hold instead."""
    pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(directory.glob(pattern))]
    if pickles:
        return (
            f"; {pickles[0]} is a pickle, which could run code when opened, and is never read: "
            "convert it to safetensors first"
        )
    gguf_files = sorted(directory.glob("*.gguf"))
    return f"; to load {gguf_files[0].name}, pass the path of that file" if gguf_files else ""


def _read_index(path: pathlib.Path) -> dict[str, pathlib.Path]:
    index = _JsonConfig(path, _read_json(path))
    weight_map = index.mapping("weight_map")
    if not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
        found = index.get("weight_map")
        raise ValueError(f"{path}: weight_map is {found!r}; expected tensor names mapped to file names")
    held = {}
    for name in sorted(set(weight_map.values())):
        shard = path.parent / name
        # An index is data from elsewhere: it may only name files beside itself.
        if shard.parent != path.parent:
            raise ValueError(f"{path}: weight_map names {name!r}; expected a file name without directories")
        if not shard.exists():
            raise ValueError(f"{path}: weight_map names {name!r}, which is missing from {path.parent}")
        held[name] = _tensor_names(shard)
    for tensor, name in weight_map.items():
        if tensor not in held[name]:
            raise ValueError(f"{path}: weight_map puts {tensor!r} into {name!r}, which does not hold it")
    return {tensor: path.parent / name for tensor, name in weight_map.items()}


def _tensor_names(path: pathlib.Path) -> frozenset[str]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return frozenset(file.keys())
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: damaged or truncated safetensors file: {error}") from error
