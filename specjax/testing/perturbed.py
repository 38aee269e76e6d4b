"""A copy of a model that is nearly the same: a draft that is mostly right."""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np
from flax import nnx

M = TypeVar("M", bound=nnx.Module)


def perturbed(model: M, scale: float, seed: int = 0) -> M:
    """A copy of a model whose weights have normal noise added.

    Args:
        scale: standard deviation of the noise, relative to that of each weight array. 0.02 to 0.3 make drafts
            from nearly always right to often wrong.
    """
    graphdef, weights = nnx.split(model)
    leaves, treedef = jax.tree.flatten(weights)
    rng = np.random.default_rng(seed)
    noisy = [
        leaf + (scale * float(np.std(leaf)) * rng.normal(size=leaf.shape)).astype(leaf.dtype)
        for leaf in leaves
    ]
    return nnx.merge(graphdef, jax.tree.unflatten(treedef, noisy))
