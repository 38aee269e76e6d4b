"""What most drafts have in common."""

from __future__ import annotations

from typing import Any

import jax

from specjax.drafts.protocol import Carry, Features, Outcome, Proposal


class BaseDraft:
    """Defaults: a draft that fills every slot and needs nothing of the target but its tokens."""

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    def slots(self, gamma: int) -> int:
        return gamma

    def check_target(self, target: Any) -> None:
        if self.taps:
            # Beside the inputs of its layers, a model has one more state: what its final norm takes.
            check_layers(self, target, "taps", self.taps, states=1)

    def absorb(
        self,
        module: Any,
        carry: Carry,
        features: Features,
        next_tokens: jax.Array,
        start: jax.Array,
        count: jax.Array,
    ) -> Carry:
        return carry


class Stateless(BaseDraft):
    """A draft without weights and without memory: it looks only at the committed text."""

    @property
    def module(self) -> Any:
        return None

    def without_module(self) -> Any:
        return self

    def init(self, module: Any, batch: int, capacity: int, vocab_size: int) -> Carry:
        return ()

    def prefill(self, module: Any, carry: Carry, tokens: jax.Array, length: jax.Array, chunk: int) -> Carry:
        return carry

    def commit(self, module: Any, carry: Carry, proposal: Proposal, outcome: Outcome) -> Carry:
        return carry

    def cached_length(self, carry: Carry) -> None:
        return None


def check_layers(draft: Any, target: Any, name: str, indices: tuple[int, ...], *, states: int = 0) -> None:
    """Raises ValueError unless the target has the layers that a draft names.

    Args:
        name: the draft's attribute that holds `indices`.
        states: indices beyond the last layer that are allowed.
    """
    kind, model = type(draft).__name__, type(target).__name__
    count = getattr(target, "num_layers", None)
    if count is None:
        raise ValueError(
            f"{kind} needs a target whose layers can be named, but {model} does not say num_layers "
            "(see specjax.models.contract)"
        )
    if not all(0 <= index < count + states for index in indices):
        raise ValueError(f"{kind}.{name} is {indices}; expected indices below {count + states} for {model}")
