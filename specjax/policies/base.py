"""As many draft tokens as there are slots, and what other policies make of that."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from specjax.drafts.protocol import Outcome, RoundContext


class BasePolicy:
    """Defaults: a policy that learns nothing, and wants every slot that may be of use."""

    @property
    def may_sit_out(self) -> bool:
        return False

    def check(self, gamma: int) -> None:
        """Any gamma will do."""

    def init(self, batch: int, gamma: int) -> Any:
        return ()

    def limit(self, state: Any, context: RoundContext) -> jax.Array:
        return context.max_live

    def continues(self, state: Any, log_law: jax.Array, slot: jax.Array) -> jax.Array:
        return jnp.ones(log_law.shape[0], jnp.bool_)

    def update(self, state: Any, outcome: Outcome) -> Any:
        return state


@dataclasses.dataclass(frozen=True)
class Fixed(BasePolicy):
    """Proposes gamma tokens, fewer only at the end of the budget."""
