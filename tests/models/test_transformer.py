"""The transformer against a plain numpy forward pass, its use inside loops, and its loading by name."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax.models.config import ModelConfig, RopeScaling
from specjax.models.transformer import Transformer

LLAMA = ModelConfig(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=32,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    tie_embeddings=True,
    eos_ids=(2, 3),
    context_length=64,
)
QWEN = dataclasses.replace(LLAMA, tie_embeddings=False, qkv_bias=True, head_dim=6, rope_theta=500.0)
SCALED = dataclasses.replace(LLAMA, num_kv_heads=6, rope_scaling=RopeScaling(kind="linear", factor=3.0))


def checkpoint(config, seed=0):
    """Random tensors under the names and shapes of a Hugging Face checkpoint."""
    d, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * width, config.num_kv_heads * width
    shapes = {"model.embed_tokens.weight": (config.vocab_size, d), "model.norm.weight": (d,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (d,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, d)
            if config.qkv_bias:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (d, q)
        shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (inner, d)
        shapes[f"{layer}mlp.down_proj.weight"] = (d, inner)
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape).astype(np.float32) * 0.4 for name, shape in shapes.items()}


def reference(config, tensors, tokens):
    """Inputs of every layer and of the final norm, and the logits, float64, no cache: as papers write it."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    time, width = len(tokens), config.head_dim

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * tensors[name]

    def rotate(x):
        factor = config.rope_scaling.factor if config.rope_scaling else 1.0
        frequencies = config.rope_theta ** (-2 * np.arange(width // 2) / width) / factor
        turned = np.exp(1j * np.arange(time)[:, None, None] * frequencies)
        pairs = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * turned
        return np.concatenate([pairs.real, pairs.imag], -1)

    x, inputs = tensors["model.embed_tokens.weight"][tokens], []
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        inputs.append(x)
        n = norm(x, f"{layer}input_layernorm.weight")

        def project(name, n=n, layer=layer):
            y = n @ tensors[f"{layer}self_attn.{name}_proj.weight"].T
            y = y + tensors.get(f"{layer}self_attn.{name}_proj.bias", 0.0)
            return y.reshape(time, -1, width)

        repeats = config.num_heads // config.num_kv_heads
        q, k = rotate(project("q")), np.repeat(rotate(project("k")), repeats, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(width)
        scores = np.where(np.tri(time, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weights, np.repeat(project("v"), repeats, axis=1))
        x = x + attended.reshape(time, -1) @ tensors[f"{layer}self_attn.o_proj.weight"].T
        n = norm(x, f"{layer}post_attention_layernorm.weight")
        gate, up = (n @ tensors[f"{layer}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[f"{layer}mlp.down_proj.weight"].T
    inputs.append(x)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return inputs, norm(x, "model.norm.weight") @ head.T


def random_tokens(batch, time):
    return np.random.default_rng(5).integers(LLAMA.vocab_size, size=(batch, time), dtype=np.int32)


def from_zero(tokens):
    return jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)


@nnx.jit(static_argnames=("capacity", "taps", "layers"))
def score(model, tokens, capacity, taps=(), layers=None):
    cache = model.init_cache(len(tokens), capacity)
    hidden, tapped, _ = model(tokens, from_zero(tokens), cache, taps=taps, layers=layers)
    return model.logits(hidden), tapped


@pytest.fixture(scope="module")
def llama():
    return Transformer(LLAMA, rngs=nnx.Rngs(0))


@pytest.mark.smoke
@pytest.mark.parametrize("config", [LLAMA, QWEN, SCALED], ids=["llama", "qwen", "scaled"])
def test_logits_and_taps_equal_the_reference(config):
    tensors, tokens = checkpoint(config), random_tokens(2, 9)
    model = Transformer.from_weights(config, tensors.__getitem__, jnp.float32)
    logits, tapped = score(model, tokens, capacity=16, taps=(2, 0, 3))
    for row in range(2):
        inputs, expected = reference(config, tensors, tokens[row])
        np.testing.assert_allclose(logits[row], expected, atol=2e-4 * np.abs(expected).max())
        np.testing.assert_allclose(tapped[0][row], inputs[2], atol=2e-4 * np.abs(inputs[2]).max())
        np.testing.assert_allclose(tapped[1][row], inputs[0], rtol=1e-6)
        np.testing.assert_allclose(tapped[2][row], inputs[3], atol=2e-4 * np.abs(inputs[3]).max())


def test_some_layers_in_an_order_equal_a_model_of_those_layers():
    tensors, tokens = checkpoint(LLAMA), random_tokens(1, 9)
    model = Transformer.from_weights(LLAMA, tensors.__getitem__, jnp.float32)
    logits, [tapped] = score(model, tokens, capacity=16, taps=(0,), layers=(2, 0))
    fewer = {name: tensor for name, tensor in tensors.items() if "layers." not in name}
    for new, old in enumerate((2, 0)):
        for name in tensors:
            if name.startswith(f"model.layers.{old}."):
                fewer[name.replace(f".{old}.", f".{new}.")] = tensors[name]
    inputs, expected = reference(dataclasses.replace(LLAMA, num_layers=2), fewer, tokens[0])
    np.testing.assert_allclose(logits[0], expected, atol=2e-4 * np.abs(expected).max())
    np.testing.assert_allclose(tapped[0], inputs[1], atol=2e-4 * np.abs(inputs[1]).max())


def test_each_of_some_layers_reads_its_own_cache(llama):
    tokens = random_tokens(2, 6)
    first, rest = tokens[:, :4], tokens[:, 4:]
    cache, start = llama.init_cache(2, 8), jnp.zeros(2, jnp.int32)
    _, _, pending = llama(first, from_zero(first), cache)
    cache = llama.commit(cache, pending, start, start + 4)
    whole, _, _ = llama(rest, 4 + from_zero(rest), cache)
    all_layers, _, nothing = llama(rest, 4 + from_zero(rest), cache, layers=(0, 1, 2))
    np.testing.assert_array_equal(all_layers, whole)
    assert nothing is None


@pytest.mark.parametrize("capacity", [8, 1024])
def test_float64_is_computed_in_float64(capacity):
    tensors, tokens = checkpoint(LLAMA), random_tokens(1, 6)
    with jax.enable_x64(True):
        model = Transformer.from_weights(LLAMA, tensors.__getitem__, jnp.float64)
        hidden, _, _ = model(tokens, from_zero(tokens), model.init_cache(1, capacity))
        logits = model.logits(hidden)
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(logits[0], reference(LLAMA, tensors, tokens[0])[1], rtol=1e-10, atol=1e-10)


def test_bfloat16_model_gives_float32_logits_near_the_reference():
    tensors, tokens = checkpoint(LLAMA), random_tokens(1, 6)
    model = Transformer.from_weights(LLAMA, tensors.__getitem__, jnp.bfloat16)
    assert {x.dtype.name for x in jax.tree.leaves(nnx.state(model))} == {"bfloat16"}
    assert {x.dtype.name for x in jax.tree.leaves(model.init_cache(1, 8))} == {"bfloat16"}
    logits, _ = score(model, tokens, capacity=8)
    assert logits.dtype == jnp.float32
    expected = reference(LLAMA, tensors, tokens[0])[1]
    np.testing.assert_allclose(logits[0], expected, atol=0.1 * np.abs(expected).max())


def test_every_tensor_is_looked_up_once_and_nothing_else():
    tensors, names = checkpoint(QWEN), []

    def lookup(name):
        names.append(name)
        return tensors[name]

    Transformer.from_weights(QWEN, lookup, jnp.float32)
    assert sorted(names) == sorted(tensors)


def test_weights_come_from_one_place():
    for arguments in ({}, {"rngs": nnx.Rngs(0), "source": lambda name, shape: jnp.zeros(shape)}):
        with pytest.raises(TypeError, match="either rngs or source"):
            Transformer(LLAMA, **arguments)


def test_wrong_shape_names_tensor_shape_and_expectation():
    tensors = checkpoint(LLAMA)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = tensors[name].T
    with pytest.raises(ValueError, match=rf"{name}.*\(24, 16\).*\(16, 24\)"):
        Transformer.from_weights(LLAMA, tensors.__getitem__, jnp.float32)


def test_weights_do_not_alias_the_callers_arrays():
    tensors, tokens = checkpoint(LLAMA), random_tokens(1, 4)
    model = Transformer.from_weights(LLAMA, tensors.__getitem__, jnp.float32)
    before, _ = score(model, tokens, capacity=8)
    for tensor in tensors.values():
        tensor[...] = 0
    np.testing.assert_array_equal(before, score(model, tokens, capacity=8)[0])


def test_tied_head_is_one_parameter(llama):
    assert llama.head is llama.embedding
    untied = Transformer(QWEN, rngs=nnx.Rngs(0))
    assert untied.head is not untied.embedding


def test_ids_outside_the_vocabulary_are_clipped(llama):
    outside = np.array([[-1, LLAMA.vocab_size, np.iinfo(np.int32).min, np.iinfo(np.int32).max]], np.int32)
    inside = np.array([[0, LLAMA.vocab_size - 1, 0, LLAMA.vocab_size - 1]], np.int32)
    seen, _ = score(llama, outside, capacity=8)
    np.testing.assert_array_equal(seen, score(llama, inside, capacity=8)[0])


def test_attributes_of_the_contract(llama):
    assert (llama.vocab_size, llama.eos_ids, llama.context_length, llama.vocabulary) == (40, (2, 3), 64, None)
    assert llama.config is LLAMA
    assert hash(nnx.split(llama)[0]) == hash(nnx.split(Transformer(LLAMA, rngs=nnx.Rngs(1)))[0])


def test_runs_merged_in_a_loop_body_and_captured_by_one(llama):
    graphdef, weights = nnx.split(llama)

    def loop(model_of):
        def step(carry):
            token, position, cache, lengths = carry
            model = model_of()
            hidden, _, pending = model(token, position, cache)
            cache = model.commit(cache, pending, lengths, jnp.ones_like(lengths))
            token = jnp.argmax(model.logits(hidden), axis=-1).astype(jnp.int32)
            return token, position + 1, cache, lengths + 1

        zeros = jnp.zeros((2, 1), jnp.int32)
        carry = (zeros, zeros, llama.init_cache(2, 16), zeros[:, 0])
        return jax.lax.while_loop(lambda carry: jnp.all(carry[3] < 10), step, carry)[0]

    merged = jax.jit(lambda weights: loop(lambda: nnx.merge(graphdef, weights)))(weights)
    np.testing.assert_array_equal(merged, loop(lambda: llama))


COPIED_BEFORE_JAX_0_12 = pytest.mark.xfail(
    jax.__version_info__ < (0, 12),
    reason="older XLA drops optimization barriers before it fuses",
    strict=False,
)


@COPIED_BEFORE_JAX_0_12
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("batch, time, capacity", [(1, 1, 512), (2, 5, 1024)])
def test_a_step_in_a_loop_copies_no_cache(dtype, batch, time, capacity):
    model = nnx.eval_shape(lambda: Transformer(LLAMA, dtype=dtype, rngs=nnx.Rngs(0)))
    graphdef, weights = nnx.split(model)

    def loop(weights, tokens, cache):
        def step(index, carry):
            tokens, cache = carry
            model = nnx.merge(graphdef, weights)
            positions = jnp.broadcast_to(index + jnp.arange(time), tokens.shape)
            hidden, _, pending = model(tokens, positions, cache)
            cache = model.commit(cache, pending, positions[:, 0], jnp.full(batch, time))
            return jnp.argmax(model.logits(hidden), axis=-1).astype(jnp.int32), cache

        return jax.lax.fori_loop(0, 10, step, (tokens, cache))

    cache = jax.eval_shape(lambda: model.init_cache(batch, capacity))
    tokens = jax.ShapeDtypeStruct((batch, time), jnp.int32)
    compiled = jax.jit(loop, donate_argnums=2).lower(weights, tokens, cache).compile()
    shape = ",".join(map(str, cache.layers[0].shape))
    assert not re.findall(rf"= \w+\[{shape}\]\S* copy\(.*", compiled.as_text())


def test_bad_calls_are_refused_while_tracing(llama):
    tokens, cache = random_tokens(2, 3), llama.init_cache(2, 8)
    with pytest.raises(ValueError, match="taps"):
        llama(tokens, from_zero(tokens), cache, taps=(4,))
    with pytest.raises(ValueError, match=r"taps is \(1,\); expected layers that run, or 3"):
        llama(tokens, from_zero(tokens), cache, taps=(1,), layers=(0, 2))
    for layers in ((3,), (0, 0)):
        with pytest.raises(ValueError, match="expected different indices below 3"):
            llama(tokens, from_zero(tokens), cache, layers=layers)
    with pytest.raises(AssertionError):
        llama(tokens, from_zero(tokens)[:, :2], cache)
    with pytest.raises(AssertionError):
        llama(tokens, from_zero(tokens), llama.init_cache(3, 8))
    with pytest.raises(AssertionError):
        llama(tokens.astype(np.float32), from_zero(tokens), cache)


def test_abstract_model_needs_no_memory():
    model = nnx.eval_shape(lambda: Transformer(LLAMA, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    assert isinstance(jax.tree.leaves(nnx.state(model))[0], jax.ShapeDtypeStruct)
    cache = jax.eval_shape(lambda: model.init_cache(2, 16))
    assert {(x.shape, x.dtype.name) for x in jax.tree.leaves(cache)} == {((2, 2, 16, 16), "bfloat16")}
