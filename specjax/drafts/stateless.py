"""What drafts without weights and without memory have in common."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from specjax.drafts.protocol import Carry, Proposal


class Stateless:
    """A draft that looks only at the committed text."""

    @property
    def module(self) -> nnx.Module | None:
        return None

    def without_module(self) -> Any:
        return self

    def init(self, module: Any, batch: int, capacity: int) -> Carry:
        return ()

    def prefill(self, module: Any, carry: Carry, tokens: jax.Array, length: jax.Array, chunk: int) -> Carry:
        return carry

    def commit(
        self, module: Any, carry: Carry, proposal: Proposal, accepted: jax.Array, new_length: jax.Array
    ) -> Carry:
        return carry

    def cached_length(self, carry: Carry) -> None:
        return None
