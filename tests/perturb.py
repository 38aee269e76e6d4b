"""A copy of a model that is nearly the same."""

import jax
import numpy as np
from flax import nnx


def perturbed(model, scale, seed=0):
    """A copy whose weights have noise added, relative to the spread of each."""
    graphdef, weights = nnx.split(model)
    leaves, treedef = jax.tree.flatten(weights)
    rng = np.random.default_rng(seed)
    noisy = [
        leaf + scale * float(np.std(leaf)) * rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in leaves
    ]
    return nnx.merge(graphdef, jax.tree.unflatten(treedef, noisy))
