"""A decoder-only transformer of the Llama family as a Flax module that scores in transactions."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from specjax.models import attention
from specjax.models.attention import KVCache
from specjax.models.config import ModelConfig
from specjax.models.layers import apply_rope, compute_dtype, linear, rms_norm, rope_tables
from specjax.models.sharding import DATA, HIDDEN, KV_CACHE, MODEL, constrain, weight_sharding

Tensor = np.ndarray | jax.Array
# Gives the tensor of a Hugging Face name, in the shape asked for and the dtype of the model.
TensorSource = Callable[[str, tuple[int, ...]], Tensor]
# Makes a parameter of a tensor, by the attribute that it becomes, on the devices where it belongs.
Place = Callable[[str, Tensor], nnx.Param]


# Devices that the inner width of an MLP can be split over, where it is a multiple of as many.
_MLP_SPLITS = 16


class DecoderLayer(nnx.Module):
    """Pre-norm attention and gated MLP.

    `x ← x + Attention(norm(x))`, then `x ← x + W_down (silu(W_gate n) * W_up n)` with `n = norm(x)`.

    Projections of the same input are one weight: fewer and larger products make a smaller program, and on
    CPU, where small ones do not reach the memory bandwidth, one that is a few percent faster. Axes that may
    be split over devices come first among the outputs or inputs: key heads K, and parts S of the inner width.

    Attributes:
        qkv: `[K, (G + 2) D, d]`, for each key head its group's queries, its key, its value.
        out: `[d, K, G D]`.
        gate_up: `[S, 2, I / S, d]`, for each part of the inner width I its gate and its up projection.
        down: `[d, S, I / S]`.
    """

    def __init__(self, config: ModelConfig, source: TensorSource, place: Place, prefix: str):
        hidden, inner = config.hidden_size, config.intermediate_size
        width, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
        self.config = config

        def qkv(kind: str, trailing: tuple[int, ...]) -> Tensor:
            parts = [
                source(f"{prefix}.self_attn.{name}_proj.{kind}", (count * width, *trailing)).reshape(
                    kv_heads, -1, *trailing
                )
                for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
            ]
            return _joined(parts, axis=1)

        splits = math.gcd(inner, _MLP_SPLITS)

        def gate_up() -> Tensor:
            parts = [
                source(f"{prefix}.mlp.{name}_proj.weight", (inner, hidden)).reshape(splits, 1, -1, hidden)
                for name in ("gate", "up")
            ]
            return _joined(parts, axis=1)

        out = source(f"{prefix}.self_attn.o_proj.weight", (hidden, heads * width))
        self.input_norm = place("input_norm", source(f"{prefix}.input_layernorm.weight", (hidden,)))
        self.qkv = place("qkv", qkv("weight", (hidden,)))
        self.qkv_bias = place("qkv_bias", qkv("bias", ())) if config.qkv_bias else None
        self.out = place("out", out.reshape(hidden, kv_heads, -1))
        self.mlp_norm = place("mlp_norm", source(f"{prefix}.post_attention_layernorm.weight", (hidden,)))
        self.gate_up = place("gate_up", gate_up())
        down = source(f"{prefix}.mlp.down_proj.weight", (hidden, inner))
        self.down = place("down", down.reshape(hidden, splits, -1))

    def __call__(
        self,
        x: jax.Array,
        cached: jax.Array,
        used: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the layer's output `[B, T, d]`, and the keys and values `[B, K, T, 2 D]` of this block."""
        attended, fresh = self._attention(self._norm(x, self.input_norm), cached, used, rope)
        x = x + attended
        return x + self._mlp(self._norm(x, self.mlp_norm)), fresh

    def _norm(self, x: jax.Array, scale: nnx.Param) -> jax.Array:
        return rms_norm(x, scale[...], self.config.rms_norm_eps)

    def _attention(self, x, cached, used, rope):
        config = self.config
        group = config.num_heads // config.num_kv_heads
        bias = None if self.qkv_bias is None else self.qkv_bias[...]
        qkv = linear(x, self.qkv[...], bias).reshape(
            *x.shape[:2], config.num_kv_heads, group + 2, config.head_dim
        )
        rotated = apply_rope(qkv[..., : group + 1, :], rope)
        fresh = jnp.concatenate([rotated[..., group, :], qkv[..., group + 1, :]], axis=-1)
        fresh = fresh.swapaxes(1, 2).astype(cached.dtype)
        attended = attention.attend(rotated[..., :group, :], cached, fresh, used)
        out = self.out[...].reshape(config.hidden_size, -1)
        return linear(attended.reshape(*x.shape[:2], -1), out), fresh

    def _mlp(self, x: jax.Array) -> jax.Array:
        gate_up = linear(x, self.gate_up[...])
        gated = jax.nn.silu(gate_up[..., 0, :].astype(compute_dtype(x.dtype))) * gate_up[..., 1, :]
        down = self.down[...].reshape(self.config.hidden_size, -1)
        return linear(gated.astype(x.dtype).reshape(*x.shape[:2], -1), down)


# Layers are alike, so that one trace serves all: a third of the time until XLA begins is saved.
_apply = jax.jit(DecoderLayer.__call__)


class Transformer(nnx.Module):
    """Llama, SmolLM, Qwen2 and their like; conforms to `specjax.models.contract.ScoringModel`.

    Attributes:
        config: shapes and constants.
        vocab_size: width of the logits.
        eos_ids: ids that end a generation by default.
        context_length: the longest sequence that the model was made for.
        vocabulary: what the ids mean, anything hashable that compares equal for equal vocabularies; set by
            whoever loads a tokenizer beside the model, None when unknown.
    """

    positional_cache = True

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
        source: TensorSource | None = None,
        mesh: Mesh | None = None,
    ):
        """A model with random weights, or with those of `source` (see `from_weights` for checkpoints).

        Args:
            dtype: dtype of the random weights: maps and embedding ~ N(0, 1 / fan_in), norms 1, biases 0.
            rngs: where they are drawn from.
            source: gives the tensors instead.
            mesh: devices to split the weights over, see `specjax.models.sharding`; None: the default device.
        """

        def place(name: str, tensor: Tensor) -> nnx.Param:
            if mesh is None:
                return nnx.Param(jnp.array(tensor))
            return nnx.Param(jax.device_put(tensor, weight_sharding(name, tensor.shape, mesh)))

        if source is None and rngs is not None:
            source = _random_source(rngs, dtype)
        elif source is None or rngs is not None:
            raise TypeError("Transformer takes either rngs or source")
        self.config = config
        self.vocab_size = config.vocab_size
        self.eos_ids = config.eos_ids
        self.context_length = config.context_length
        self.vocabulary: Hashable = None
        embedding_shape = (config.vocab_size, config.hidden_size)
        self.embedding = place("embedding", source("model.embed_tokens.weight", embedding_shape))
        # Unrolled, not scanned: a scan slices its stacked weights, which on CPU copies all of them every step
        # (three times slower), and a copy of the cache is never far on TPU.
        self.layers = nnx.List(
            [
                DecoderLayer(config, source, place, f"model.layers.{index}")
                for index in range(config.num_layers)
            ]
        )
        self.final_norm = place("final_norm", source("model.norm.weight", (config.hidden_size,)))
        self.head = (
            self.embedding
            if config.tie_embeddings
            else place("head", source("lm_head.weight", embedding_shape))
        )

    @classmethod
    def from_weights(
        cls,
        config: ModelConfig,
        lookup: Callable[[str], np.ndarray],
        dtype: jax.typing.DTypeLike = jnp.float32,
        mesh: Mesh | None = None,
    ) -> Transformer:
        """A model with the weights of a checkpoint.

        Args:
            lookup: gives the tensor of a Hugging Face name, such as `model.layers.3.self_attn.q_proj.weight`.
                It is called once for each tensor and its result is not kept: a lazy one keeps the peak at one
                model and one layer's tensors.
            dtype: dtype of the model, to which every tensor is cast.
            mesh: devices to split the weights over, each of which gets its part alone.

        Raises:
            ValueError: a tensor's shape disagrees with the config.
        """
        return cls(config, source=_checked_source(lookup, dtype), mesh=mesh)

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of at least `capacity` tokens, in the dtype of the model."""
        config = self.config
        cache = attention.init_cache(
            config.num_layers,
            batch,
            config.num_kv_heads,
            capacity,
            config.head_dim,
            self.embedding.dtype,
        )
        return _on_mesh(cache)

    @property
    def num_layers(self) -> int:
        """Layers that `taps` and `layers` may name."""
        return self.config.num_layers

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: KVCache,
        *,
        taps: tuple[int, ...] = (),
        layers: tuple[int, ...] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...], KVCache | None]:
        """Scores a block of tokens in each row.

        Args:
            tokens: int32 `[B, T]`. Ids outside the vocabulary are clipped into it.
            positions: int32 `[B, T]`, consecutive within a row and below the capacity.
            cache: valid below `positions[b, 0]` in row `b`.
            taps: layers whose input states are returned too; `num_layers` is what the final norm takes.
            layers: those that run, in this order; all by default.

        Returns:
            The final-normed states `[B, T, d]`; the tapped states, `[B, T, d]` each; the keys and values of
            the block, arrays `[B, K, T, 2 D]`, for `commit`: None if only some layers ran.
        """
        batch, time = tokens.shape
        chex.assert_equal_shape([tokens, positions])
        chex.assert_type([tokens, positions], int)
        config = self.config
        chex.assert_shape(cache.layers, (batch, config.num_kv_heads, None, 2 * config.head_dim))
        run = range(config.num_layers) if layers is None else layers
        if not all(0 <= index < config.num_layers for index in run) or len(set(run)) < len(run):
            raise ValueError(f"layers is {layers}; expected different indices below {config.num_layers}")
        if not {*taps} <= {*run, config.num_layers}:
            raise ValueError(f"taps is {taps}; expected layers that run, or {config.num_layers}")

        x = self.embedding[...][jnp.clip(tokens, 0, config.vocab_size - 1)]
        x = constrain(x, HIDDEN)
        rope = rope_tables(positions, config, x.dtype)
        states, fresh = {}, []
        for index in run:
            states[index] = x
            x, entries = _apply(self.layers[index], x, cache.layers[index], positions[:, 0], rope)
            fresh.append(entries)
        states[config.num_layers] = x
        tapped = tuple(states[tap] for tap in taps)
        hidden = rms_norm(x, self.final_norm[...], config.rms_norm_eps)
        chex.assert_shape(hidden, (batch, time, config.hidden_size))
        if layers is not None:
            return hidden, tapped, None
        # The last layer's attention must have read the cache before the block is written into it.
        hidden, pending = jax.lax.optimization_barrier((hidden, KVCache(layers=tuple(fresh))))
        return hidden, tapped, pending

    def commit(self, cache: KVCache, pending: KVCache, lengths: jax.Array, count: jax.Array) -> KVCache:
        """Writes the block; the lengths hide the tokens that were not accepted."""
        del count
        return _on_mesh(attention.write(cache, pending, lengths))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token logits `[..., V]`, float32 at least: bfloat16 would make ties."""
        logits = linear(hidden, self.head[...], out_dtype=compute_dtype(hidden.dtype))
        return constrain(logits, (DATA, *(None,) * (logits.ndim - 2), MODEL))


def _on_mesh(cache: KVCache) -> KVCache:
    return jax.tree.map(lambda layer: constrain(layer, KV_CACHE), cache)


def _joined(parts: list[Any], axis: int) -> Tensor:
    """Parts of one weight, on the host if they are there: devices then get what belongs to them alone."""
    on_host = all(isinstance(part, np.ndarray) for part in parts)
    return (np if on_host else jnp).concatenate(parts, axis=axis)


def _checked_source(lookup: Callable[[str], np.ndarray], dtype: jax.typing.DTypeLike) -> TensorSource:
    def source(name: str, shape: tuple[int, ...]) -> np.ndarray:
        tensor = lookup(name)
        if tensor.shape != shape:
            raise ValueError(f"tensor {name!r} has shape {tensor.shape}; the config asks for {shape}")
        return tensor.astype(jnp.dtype(dtype), copy=False)

    return source


def _random_source(rngs: nnx.Rngs, dtype: jax.typing.DTypeLike) -> TensorSource:
    def source(name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith("bias"):
            return jnp.zeros(shape, dtype)
        if "norm" in name:
            return jnp.ones(shape, dtype)
        return jax.random.normal(rngs.params(), shape, dtype) * shape[-1] ** -0.5

    return source
