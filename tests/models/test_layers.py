"""Linear maps, RMSNorm and rotary embedding against formulas written in numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import layers
from specjax.models.config import ModelConfig, RopeScaling


def config(head_dim=16, theta=10_000.0, scaling=None):
    return ModelConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        rope_theta=theta,
        rope_scaling=scaling,
    )


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("leading", [(1,), (1, 1), (3,), (2, 3)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_is_a_product_with_the_transpose(leading, with_bias):
    x, weight, bias = normal(*leading, 24), normal(40, 24, seed=1), normal(40, seed=2)
    y = layers.linear(x, weight, bias if with_bias else None)
    assert y.shape == (*leading, 40)
    np.testing.assert_allclose(y, x @ weight.T + with_bias * bias, rtol=1e-5, atol=1e-5)


@pytest.mark.smoke
def test_linear_rows_have_the_same_bits_for_any_number_of_rows():
    x, weight = jnp.asarray(normal(8, 96)), jnp.asarray(normal(200, 96, seed=1))
    linear = jax.jit(layers.linear)
    alone = np.concatenate([linear(x[i : i + 1], weight) for i in range(8)])
    for rows in range(1, 9):
        np.testing.assert_array_equal(linear(x[:rows], weight), alone[:rows], err_msg=f"{rows} rows")


def test_linear_pads_a_single_row_on_cpu_only():
    x, weight = jnp.zeros((1, 1, 24)), jnp.zeros((40, 24))
    traced = jax.jit(layers.linear).trace(x, weight)
    assert "tensor<2x24xf32>" in traced.lower(lowering_platforms=("cpu",)).as_text()
    for platform in ("tpu", "cuda"):
        assert "tensor<2x24xf32>" not in traced.lower(lowering_platforms=(platform,)).as_text()


def test_linear_widens_before_rounding():
    x, weight = jnp.asarray(normal(2, 64), jnp.bfloat16), jnp.asarray(normal(5, 64, seed=1), jnp.bfloat16)
    assert layers.linear(x, weight).dtype == jnp.bfloat16
    wide = layers.linear(x, weight, out_dtype=jnp.float32)
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(wide, exact, rtol=1e-5, atol=1e-5)


def test_linear_refuses_a_transposed_weight():
    with pytest.raises(AssertionError, match="24"):
        layers.linear(jnp.zeros((2, 24)), jnp.zeros((24, 40)))


def test_rms_norm_is_computed_in_float32():
    # Squares of 300 overflow float16, and bfloat16 has no room for eps beside 1.
    x = np.full((1, 4), 300.0)
    normed = layers.rms_norm(jnp.asarray(x, jnp.float16), jnp.full(4, 2.0, jnp.float16), 1e-5)
    assert normed.dtype == jnp.float16
    np.testing.assert_allclose(normed, np.full((1, 4), 2.0), rtol=1e-3)
    x = normal(3, 16)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * normal(16, seed=1)
    np.testing.assert_allclose(layers.rms_norm(x, normal(16, seed=1), 0.1), expected, rtol=1e-5)


def test_linear_scaling_divides_every_frequency():
    plain = layers.rope_frequencies(16, 500.0)
    np.testing.assert_allclose(plain, [500.0 ** (-2 * i / 16) for i in range(8)])
    scaled = layers.rope_frequencies(16, 500.0, RopeScaling(kind="linear", factor=4.0))
    np.testing.assert_allclose(scaled, plain / 4)


def test_llama3_scaling_follows_wavelengths():
    scaling = RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=8192
    )
    seen = layers.rope_frequencies(128, 500_000.0, scaling)
    expected, regions = [], set()
    for i in range(64):
        frequency = 500_000.0 ** (-2 * i / 128)
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4.0:
            regions.add("kept")
        elif wavelength > 8192 / 1.0:
            regions.add("divided")
            frequency /= 8.0
        else:
            regions.add("between")
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / 8.0 + smooth * frequency
        expected.append(frequency)
    assert regions == {"kept", "divided", "between"}
    np.testing.assert_allclose(seen, expected, rtol=1e-12)


def test_divisors_divide_each_frequency():
    divisors = tuple(float(d) for d in range(1, 9))
    scaled = layers.rope_frequencies(16, 500.0, RopeScaling(kind="divisors", divisors=divisors))
    np.testing.assert_allclose(scaled * divisors, layers.rope_frequencies(16, 500.0))


def test_divisors_must_match_the_head():
    with pytest.raises(ValueError, match="1 numbers; expected 8"):
        layers.rope_frequencies(16, 500.0, RopeScaling(kind="divisors", divisors=(1.0,)))


def test_rope_rotates_half_split_pairs():
    x, positions = normal(2, 3, 2, 16), np.array([[0, 1, 2], [7, 8, 9]], np.int32)
    rotated = np.asarray(layers.apply_rope(x, layers.rope_tables(positions, config(), jnp.float32)))
    pairs = x[..., :8] + 1j * x[..., 8:]
    angles = positions[..., None, None] * 10_000.0 ** (-np.arange(8) / 8)
    expected = pairs * np.exp(1j * angles)
    np.testing.assert_allclose(rotated, np.concatenate([expected.real, expected.imag], -1), atol=1e-5)


def test_rope_of_bfloat16_uses_float32_angles():
    # 1001 is no bfloat16 number: angles of bfloat16 positions would be off by whole radians.
    positions = np.array([[1001]], np.int32)
    cos, sin = layers.rope_tables(positions, config(), jnp.bfloat16)
    assert cos.dtype == jnp.float32
    angles = 1001 * 10_000.0 ** (-np.arange(8) / 8)
    np.testing.assert_allclose(cos[0, 0], np.cos(angles), atol=1e-4)
    np.testing.assert_allclose(sin[0, 0], np.sin(angles), atol=1e-4)
    assert layers.apply_rope(jnp.zeros((1, 1, 16), jnp.bfloat16), (cos, sin)).dtype == jnp.bfloat16
