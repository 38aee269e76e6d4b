"""As many draft tokens as the draft is sure of."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.policies.base import BasePolicy


@dataclasses.dataclass(frozen=True)
class Confidence(BasePolicy):
    """Stops before the first slot at which no token has a probability of `threshold` in the draft's law.

    The largest probability is looked at, before sampling, not that of the token drawn: other libraries drop
    a token that was drawn and is unlikely, which is only exact where acceptance compares tokens.

    Attributes:
        threshold: between 0, which never stops, and 1.
    """

    threshold: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"Confidence.threshold is {self.threshold}; expected a probability")

    def continues(self, state: Any, log_law: jax.Array, slot: jax.Array) -> jax.Array:
        return jnp.exp(jnp.max(log_law, axis=-1)) >= self.threshold


@dataclasses.dataclass(frozen=True)
class Entropy(BasePolicy):
    """Stops before the first slot at which the draft's law is wide, with an entropy above `bound`.

    H(q) = -sum_x q(x) log q(x), in nats. The entropy of the draft bounds from below how much of its law the
    target can be expected to share (Agrawal et al., "AdaEDL", arXiv 2410.18351; Zhang et al., "Draft Model
    Knows When to Stop", arXiv 2411.18462, whose bound is on the square root).

    Attributes:
        bound: in nats, at least 0; log V never stops.
    """

    bound: float = 1.0

    def __post_init__(self) -> None:
        if not self.bound >= 0:
            raise ValueError(f"Entropy.bound is {self.bound}; expected at least 0")

    def continues(self, state: Any, log_law: jax.Array, slot: jax.Array) -> jax.Array:
        # x log x is 0 at 0, where the logarithm is -inf.
        weighted = jnp.where(log_law == -jnp.inf, 0.0, jnp.exp(log_law) * log_law)
        return -jnp.sum(weighted, axis=-1) <= self.bound
