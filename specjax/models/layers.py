"""The pieces a transformer layer is made of: linear maps, RMSNorm and rotary position embedding."""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.config import ModelConfig, RopeScaling


def compute_dtype(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype that norms, rotations and softmax of a `dtype` model run in: float32 at least."""
    return jnp.promote_types(dtype, jnp.float32)


def linear(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """`y = x Wᵀ + b`, the one matrix product through which every weight of the model is applied.

    On CPU a product with a single row takes another code path of XLA, several times slower in bfloat16 and
    rounded differently in float32. A zero row is added there, so that it never happens: float32 rows then
    have the same bits whether they are scored alone or with others.

    Args:
        x: `[..., in]`.
        weight: `[*out, in]`, as checkpoints store it: with one axis of outputs or several.
        bias: `[*out]`, added in the dtype of the product.
        out_dtype: dtype of the product, `x.dtype` by default. A wider one costs no extra pass: products are
            accumulated in float32 anyway.

    Returns:
        `[..., *out]`.
    """
    *out, width = weight.shape
    chex.assert_axis_dimension(x, -1, width)
    rows = x.reshape(-1, width)
    product = _matmul_padded if rows.shape[0] == 1 else _matmul
    # One axis of outputs: a CPU has no fast product with several.
    y = product(rows, weight.reshape(-1, width), out_dtype or x.dtype).reshape(*x.shape[:-1], *out)
    if bias is not None:
        chex.assert_shape(bias, out)
        y = y + bias.astype(y.dtype)
    return y


def _matmul(rows: jax.Array, weight: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    return jax.lax.dot_general(rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=dtype)


def _matmul_padded(row: jax.Array, weight: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """`_matmul` of one row; the platform is the one that is compiled for, not the one that compiles."""
    return jax.lax.platform_dependent(
        row,
        weight,
        cpu=lambda x, w: _matmul(jnp.concatenate([x, jnp.zeros_like(x)]), w, dtype)[:1],
        default=lambda x, w: _matmul(x, w, dtype),
    )


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """`x / sqrt(mean(x²) + eps) * scale` over the last axis (Zhang and Sennrich, 2019), in float32 at least.

    Args:
        x: `[..., d]`.
        scale: `[d]`.

    Returns:
        `[..., d]` in the dtype of `x`.
    """
    chex.assert_shape(scale, (x.shape[-1],))
    wide = x.astype(compute_dtype(x.dtype))
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(wide.dtype)).astype(x.dtype)


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Angular frequencies of rotary embedding, `theta^(-2i/D)`, stretched by `scaling` (host constants).

    `linear` (Chen et al., 2023, position interpolation) divides all of them by `factor`. `llama3` looks at
    how often a frequency turns within the original context, `turns = original_context_length * f / 2π`: it is
    kept from `high_freq_factor` turns on, divided by `factor` below `low_freq_factor` turns, and interpolated
    linearly in `turns` between the two. `divisors` divides each by its own number.

    Returns:
        float64 `[D // 2]`.

    Raises:
        ValueError: the number of divisors is not that of the frequencies.
    """
    freqs = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return freqs
    if scaling.kind == "linear":
        return freqs / scaling.factor
    if scaling.kind == "llama3":
        turns = scaling.original_context_length * freqs / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return kept * freqs + (1.0 - kept) * freqs / scaling.factor
    if len(scaling.divisors) != len(freqs):
        raise ValueError(f"RopeScaling.divisors has {len(scaling.divisors)} numbers; expected {len(freqs)}")
    return freqs / np.asarray(scaling.divisors)


def rope_tables(
    positions: jax.Array, config: ModelConfig, dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of `positions`, computed once per call and shared by all layers.

    Args:
        positions: int32 `[B, T]`, absolute.
        dtype: dtype of the model; the angles are at least float32.

    Returns:
        Two arrays `[B, T, D // 2]`.
    """
    wide = compute_dtype(dtype)
    freqs = jnp.asarray(rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling), wide)
    angles = positions[..., None].astype(wide) * freqs
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates the pairs `(x_i, x_{i + D/2})` by their position's angles (Su et al., 2021).

    The pairing of halves is that of Hugging Face Llama checkpoints, not the interleaved one of the paper.

    Args:
        x: `[B, T, ..., D]`, any number of head axes.
        tables: from `rope_tables`.

    Returns:
        An array like `x`.
    """
    cos, sin = tables
    chex.assert_shape([cos, sin], (*x.shape[:2], x.shape[-1] // 2))
    cos, sin = (jnp.expand_dims(t, tuple(range(2, x.ndim - 1))) for t in (cos, sin))
    first, second = jnp.split(x.astype(cos.dtype), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
