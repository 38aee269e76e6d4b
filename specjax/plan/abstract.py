"""Models, states and arguments as shapes alone, on devices that need not be there."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.decoding import DecodeConfig, Decoder, DecodeState
from specjax.drafts.names import draft_named
from specjax.models.config import ModelConfig
from specjax.models.dtype import resolve_dtype
from specjax.models.transformer import Transformer
from specjax.plan.devices import Placement
from specjax.sampling import Sampling

# A sampled round does all that a greedy one does, and computes laws.
_SAMPLING = Sampling(temperature=1.0)


def model_config(name: str) -> ModelConfig:
    """The shapes of a model whose weights need not be there.

    Args:
        name: a directory with a `config.json`, or a `.gguf` file.

    Raises:
        ValueError: it is neither, or of a kind that is not supported.
    """
    path = pathlib.Path(name).expanduser()
    if path.is_dir():
        from specjax.models.checkpoint import read_config

        return read_config(path)
    if path.suffix == ".gguf" and path.is_file():
        from specjax.models.gguf import open_gguf

        return open_gguf(path).config
    raise ValueError(
        f"model is {name!r}; expected a directory with a config.json, no weights needed, or a .gguf file"
    )


def abstract_model(config: ModelConfig, dtype: jax.typing.DTypeLike) -> Transformer:
    """A model of shapes: what `specjax.load` would return, without memory behind it."""
    return nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))


def abstract_decoder(
    target: str, draft: str, config: DecodeConfig, *, dtype: str, on_cpu: bool = False
) -> Decoder:
    """A decoder of shapes.

    Args:
        target: as for `model_config`. draft: as `draft_named` takes it, its model likewise.
        dtype: `"auto"`: bfloat16, on a CPU what is faster there.

    Raises:
        ValueError: a model cannot be read.
    """
    resolved = jnp.dtype("bfloat16") if dtype == "auto" and not on_cpu else resolve_dtype(dtype)

    def shapes_of(name: str) -> Transformer:
        return abstract_model(model_config(name), resolved)

    return Decoder(shapes_of(target), draft_named(draft, shapes_of), config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the programs of a decoder are compiled for: shapes with their places.

    Attributes:
        weights: of target, draft and processors.
        prompts, lengths, request: as `Decoder.start` makes them; the request's values are real.
    """

    weights: Any
    prompts: Any
    lengths: Any
    request: Any

    @classmethod
    def of(cls, decoder: Decoder, batch: int, prompt_width: int, where: Placement) -> Arguments:
        shortest = np.ones(batch, np.int32)
        prompts = np.zeros((batch, prompt_width), np.int32)
        prompts, lengths, request = decoder._arguments(prompts, shortest, _SAMPLING, None, None)
        return cls(
            weights=place_weights(decoder._weights, where),
            prompts=place(prompts, where),
            lengths=place(lengths, where),
            request=request,
        )


def place(tree: Any, where: Placement) -> Any:
    """The shapes of a tree's arrays, on every device or on the one."""
    return place_like(tree, jax.tree.map(lambda _: where.default, tree))


def place_like(tree: Any, shardings: Any) -> Any:
    """The shapes of a tree's arrays, with a sharding for each."""

    def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, tree, shardings)


def place_weights(weights: Any, where: Placement) -> Any:
    """The shapes of weights, split over the mesh as `specjax.models.sharding` splits them."""
    if where.mesh is None:
        return place(weights, where)
    from specjax.models.sharding import weight_shardings

    return place_like(weights, weight_shardings(weights, where.mesh))


def full_state(state: DecodeState, request: Any, gamma: int) -> DecodeState:
    """A state in which every row is as long as it can be before a round, where values are known.

    Lengths and settings are constants, so that the compiler, and who reads its program, knows how many blocks
    of the cache are visited and which branches are taken. Everything else stays a shape.
    """
    batch, capacity = state.tokens.shape
    longest = capacity - gamma - 1

    def rows(value: int) -> Any:
        return np.full(batch, value, np.int32)

    def lengths_known(path: Any, leaf: Any) -> Any:
        """Of a draft's cache, which may be one of two."""
        return rows(longest - 1) if _name(path[-1]) == "length" else leaf

    draft = jax.tree_util.tree_map_with_path(lengths_known, state.draft)
    return dataclasses.replace(
        state,
        length=rows(longest),
        prompt_length=rows(longest),  # nothing is generated yet, so that no budget cuts the draft short
        cached_length=rows(longest - 1),
        finish_reason=rows(0),
        request=jax.tree.map(np.asarray, request),
        draft=draft,
    )


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of a tree of placed shapes."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def device_shapes(tree: Any) -> set[tuple[int, ...]]:
    """What one device holds of each array in a tree of placed shapes."""
    return {_shard_shape(leaf) for leaf in jax.tree.leaves(tree)}


def _shard_shape(leaf: Any) -> tuple[int, ...]:
    sharding = getattr(leaf, "sharding", None)
    return leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)


def cache_arrays(state: DecodeState) -> Iterator[Any]:
    """Arrays of the target's and the draft's cache."""
    yield from jax.tree.leaves(state.cache)
    yield from draft_cache_arrays(state)


def draft_cache_arrays(state: DecodeState) -> Iterator[Any]:
    """Arrays of the draft's cache, or of several drafts'."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.draft):
        if any(_name(key) == "cache" for key in path):
            yield leaf


def _name(key: Any) -> str | None:
    return getattr(key, "name", None)


def _leaf_bytes(leaf: Any) -> int:
    return math.prod(_shard_shape(leaf)) * np.dtype(leaf.dtype).itemsize
