"""Tensor parallelism: which axis of an array lies along which axis of the mesh.

A mesh may have an axis `"data"`, over which the rows of a batch are spread, and an axis `"model"`, over which
key heads, the inner width of the MLP and the vocabulary are: the first product of either half of a layer is
split by outputs and the second by inputs, so that each half ends in one sum over the devices (Shoeybi et al.,
"Megatron-LM", arXiv 1909.08053). What an axis of the mesh does not divide evenly is replicated over it.

Weights decide: a `Decoder` whose weights lie on a mesh decodes on that mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Axes = tuple[str | None, ...]

DATA, MODEL = "data", "model"
HIDDEN: Axes = (DATA, None, None)
KV_CACHE: Axes = (DATA, MODEL, None, None)

# The weights of `Transformer` that are split, by name.
_WEIGHTS: dict[str, Axes] = {
    "embedding": (MODEL, None),
    "head": (MODEL, None),
    "qkv": (MODEL, None, None),
    "qkv_bias": (MODEL, None),
    "out": (None, MODEL, None),
    "gate_up": (MODEL, None, None, None),
    "down": (None, MODEL, None),
}


def check_axes(axes: Iterable[str]) -> None:
    """Raises ValueError for an axis of a mesh over which nothing would be split."""
    axes = tuple(axes)
    if not set(axes) <= {DATA, MODEL}:
        raise ValueError(f"mesh has the axes {', '.join(axes)}; expected {DATA}, {MODEL} or both")


def partition(axes: Axes, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    """`axes` without those that the mesh lacks, or does not divide the shape by."""
    sizes = dict(mesh.shape)
    kept = (
        axis if axis is not None and size % sizes.get(axis, size + 1) == 0 else None
        for axis, size in zip(axes, shape, strict=True)
    )
    return PartitionSpec(*kept)


def weight_sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Where a weight of `Transformer` belongs, by its attribute's name."""
    return NamedSharding(mesh, partition(_WEIGHTS.get(name, (None,) * len(shape)), shape, mesh))


def weight_shardings(weights: Any, mesh: Mesh) -> Any:
    """A `NamedSharding` for every array of an nnx state, or of a tree of them, abstract or not.

    Arrays of other modules than `Transformer` are replicated, unless their names are the same.
    """

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        known = [name for name in names if name in _WEIGHTS and len(_WEIGHTS[name]) == len(leaf.shape)]
        return weight_sharding(known[-1] if known else "", leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(sharding, weights)


def constrain(x: jax.Array, axes: Axes) -> jax.Array:
    """`x`, split along the axes of the mesh that the program is compiled for, if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, partition(axes, x.shape, mesh))


def constrain_rows(tree: Any) -> Any:
    """Arrays that lead with B, split by rows; models split their own, which are called `cache`.

    What leaves one program then lies as the next one expects it, so that none compiles a second time.
    """

    def split(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if any(getattr(key, "name", None) == "cache" for key in path):
            return leaf
        return constrain(leaf, (DATA, *(None,) * (leaf.ndim - 1)))

    return jax.tree_util.tree_map_with_path(split, tree)


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh that arrays, concrete or abstract, lie on; None if they lie on one device.

    Raises:
        ValueError: they lie on several meshes.
    """
    meshes = {mesh for leaf in jax.tree.leaves(tree) if (mesh := _mesh_of_leaf(leaf)) is not None}
    if len(meshes) > 1:
        shapes = ", ".join(sorted(str(dict(mesh.shape)) for mesh in meshes))
        raise ValueError(f"the weights of target and draft lie on several meshes: {shapes}; expected one")
    return next(iter(meshes), None)


def with_auto_axes(tree: Any) -> Any:
    """The same arrays on the same devices, split the same way, with the axes of their mesh left to XLA."""

    def auto(leaf: Any) -> Any:
        mesh = _mesh_of_leaf(leaf)
        if mesh is None or _is_auto(mesh):
            return leaf
        sharding = NamedSharding(_auto(mesh), leaf.sharding.spec)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.device_put(leaf, sharding)

    return jax.tree.map(auto, tree)


def left_to_xla(function: Callable[..., Any], prompts: jax.Array) -> Callable[..., Any]:
    """`function`, with the axes of the mesh that it is traced under left to XLA if they are explicit.

    Args:
        prompts: `[B, ...]`; results, which lead with B too, are split by rows as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or _is_auto(mesh):
        return function
    rows = jax.typeof(prompts).sharding.spec[0]
    return jax.sharding.auto_axes(function, out_sharding=PartitionSpec(rows))


def _mesh_of_leaf(leaf: Any) -> Mesh | None:
    """None also for what is being traced: there the caller's mesh is known to JAX."""
    sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def _is_auto(mesh: Any) -> bool:
    return all(kind == AxisType.Auto for kind in mesh.axis_types)


def _auto(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
