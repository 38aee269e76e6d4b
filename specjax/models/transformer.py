"""A decoder-only transformer of the Llama family as a Flax module that scores in transactions."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.models import attention
from specjax.models.attention import KVCache
from specjax.models.config import ModelConfig
from specjax.models.layers import apply_rope, compute_dtype, linear, rms_norm, rope_tables

# Gives the tensor of a Hugging Face name, in the shape asked for and the dtype of the model.
TensorSource = Callable[[str, tuple[int, ...]], jax.Array]


class DecoderLayer(nnx.Module):
    """Pre-norm attention and gated MLP.

    `x ← x + Attention(norm(x))`, then `x ← x + W_down (silu(W_gate n) * W_up n)` with `n = norm(x)`.

    Projections of the same input are one weight: fewer and larger products make a smaller program, and on
    CPU, where small ones do not reach the memory bandwidth, one that is a few percent faster. Queries, keys
    and values are interleaved by key head, `[K, G + 2, D]` along the output axis (the group's queries, its
    key, its value), so that a split over key heads splits the fused weight in one cut.
    """

    def __init__(self, config: ModelConfig, source: TensorSource, prefix: str):
        hidden, inner = config.hidden_size, config.intermediate_size
        width, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
        self.config = config

        def qkv(kind: str, trailing: tuple[int, ...]) -> jax.Array:
            parts = [
                source(f"{prefix}.self_attn.{name}_proj.{kind}", (count * width, *trailing)).reshape(
                    kv_heads, -1, width, *trailing
                )
                for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
            ]
            return jnp.concatenate(parts, axis=1).reshape(-1, *trailing)

        self.input_norm = nnx.Param(source(f"{prefix}.input_layernorm.weight", (hidden,)))
        self.qkv = nnx.Param(qkv("weight", (hidden,)))
        self.qkv_bias = nnx.Param(qkv("bias", ())) if config.qkv_bias else None
        self.out = nnx.Param(source(f"{prefix}.self_attn.o_proj.weight", (hidden, heads * width)))
        self.mlp_norm = nnx.Param(source(f"{prefix}.post_attention_layernorm.weight", (hidden,)))
        self.gate_up = nnx.Param(
            jnp.concatenate(
                [source(f"{prefix}.mlp.{n}_proj.weight", (inner, hidden)) for n in ("gate", "up")]
            )
        )
        self.down = nnx.Param(source(f"{prefix}.mlp.down_proj.weight", (hidden, inner)))

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        positions: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the layer's output `[B, T, d]` and its keys and values with this call's entries written."""
        attended, keys, values = self._attention(
            self._norm(x, self.input_norm), keys, values, positions, rope
        )
        x = x + attended
        return x + self._mlp(self._norm(x, self.mlp_norm)), keys, values

    def _norm(self, x: jax.Array, scale: nnx.Param) -> jax.Array:
        return rms_norm(x, scale[...], self.config.rms_norm_eps)

    def _attention(self, x, keys, values, positions, rope):
        config = self.config
        group = config.num_heads // config.num_kv_heads
        bias = None if self.qkv_bias is None else self.qkv_bias[...]
        qkv = linear(x, self.qkv[...], bias).reshape(
            *x.shape[:2], config.num_kv_heads, group + 2, config.head_dim
        )
        rotated = apply_rope(qkv[..., : group + 1, :], rope)
        keys = attention.write(keys, rotated[..., group, :], positions)
        values = attention.write(values, qkv[..., group + 1, :], positions)
        attended = attention.attend(rotated[..., :group, :], keys, values, positions)
        return linear(attended.reshape(*x.shape[:2], -1), self.out[...]), keys, values

    def _mlp(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(linear(x, self.gate_up[...]), 2, axis=-1)
        gated = jax.nn.silu(gate.astype(compute_dtype(x.dtype))) * up
        return linear(gated.astype(x.dtype), self.down[...])


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
    ):
        """A model with random weights, or with those of `source` (see `from_weights` for checkpoints).

        Args:
            dtype: dtype of the random weights: maps and embedding ~ N(0, 1 / fan_in), norms 1, biases 0.
            rngs: where they are drawn from.
            source: gives the tensors instead.
        """
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
        self.embedding = nnx.Param(source("model.embed_tokens.weight", embedding_shape))
        # Unrolled, not scanned: a scan slices its stacked weights, which on CPU copies all of them every step
        # (three times slower), and a copy of the cache is never far on TPU.
        self.layers = nnx.List(
            [DecoderLayer(config, source, f"model.layers.{index}") for index in range(config.num_layers)]
        )
        self.final_norm = nnx.Param(source("model.norm.weight", (config.hidden_size,)))
        self.head = (
            self.embedding if config.tie_embeddings else nnx.Param(source("lm_head.weight", embedding_shape))
        )

    @classmethod
    def from_weights(
        cls,
        config: ModelConfig,
        lookup: Callable[[str], np.ndarray],
        dtype: jax.typing.DTypeLike = jnp.float32,
    ) -> Transformer:
        """A model with the weights of a checkpoint.

        Args:
            lookup: gives the tensor of a Hugging Face name, such as `model.layers.3.self_attn.q_proj.weight`.
                It is called once for each tensor and its result is not kept: a lazy one keeps the peak at one
                model and one layer's tensors.
            dtype: dtype of the model, to which every tensor is cast.

        Raises:
            ValueError: a tensor's shape disagrees with the config.
        """
        return cls(config, source=_checked_source(lookup, dtype))

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of at least `capacity` tokens, in the dtype of the model."""
        config = self.config
        return attention.init_cache(
            config.num_layers,
            batch,
            config.num_kv_heads,
            capacity,
            config.head_dim,
            self.embedding.dtype,
        )

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, cache: KVCache, *, taps: tuple[int, ...] = ()
    ) -> tuple[jax.Array, tuple[jax.Array, ...], KVCache]:
        """Scores a block of tokens in each row.

        Args:
            tokens: int32 `[B, T]`. Ids outside the vocabulary are clipped into it.
            positions: int32 `[B, T]`, consecutive within a row and below the capacity.
            cache: valid below `positions[b, 0]` in row `b`; written in place, where XLA may.
            taps: layers whose input states are returned too.

        Returns:
            The final-normed states `[B, T, d]`; the tapped states, `[B, T, d]` each; the cache with the block
            in it.
        """
        batch, time = tokens.shape
        chex.assert_equal_shape([tokens, positions])
        chex.assert_type([tokens, positions], int)
        config = self.config
        chex.assert_shape([*cache.keys, *cache.values], (batch, config.num_kv_heads, None, config.head_dim))
        if not all(0 <= tap < config.num_layers for tap in taps):
            raise ValueError(f"taps is {taps}; expected layer indices below {config.num_layers}")

        x = self.embedding[...][jnp.clip(tokens, 0, config.vocab_size - 1)]
        rope = rope_tables(positions, config, x.dtype)
        inputs, keys, values = [], [], []
        for layer, layer_keys, layer_values in zip(self.layers, cache.keys, cache.values, strict=True):
            inputs.append(x)
            x, layer_keys, layer_values = _apply(layer, x, layer_keys, layer_values, positions, rope)
            keys.append(layer_keys)
            values.append(layer_values)
        hidden = rms_norm(x, self.final_norm[...], config.rms_norm_eps)
        chex.assert_shape(hidden, (batch, time, config.hidden_size))
        return hidden, tuple(inputs[tap] for tap in taps), KVCache(keys=tuple(keys), values=tuple(values))

    def commit(self, cache: KVCache, pending: KVCache, lengths: jax.Array, count: jax.Array) -> KVCache:
        """Keeps what was written; the lengths hide the tokens that were not accepted."""
        del cache, lengths, count
        return pending

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token logits `[..., V]`, float32 at least: bfloat16 would make ties."""
        return linear(hidden, self.head[...], out_dtype=compute_dtype(hidden.dtype))


def _checked_source(lookup: Callable[[str], np.ndarray], dtype: jax.typing.DTypeLike) -> TensorSource:
    def source(name: str, shape: tuple[int, ...]) -> jax.Array:
        tensor = lookup(name)
        if tensor.shape != shape:
            raise ValueError(f"tensor {name!r} has shape {tensor.shape}; the config asks for {shape}")
        return jnp.array(tensor, dtype)

    return source


def _random_source(rngs: nnx.Rngs, dtype: jax.typing.DTypeLike) -> TensorSource:
    def source(name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith("bias"):
            return jnp.zeros(shape, dtype)
        if "norm" in name:
            return jnp.ones(shape, dtype)
        return jax.random.normal(rngs.params(), shape, dtype) * shape[-1] ** -0.5

    return source
