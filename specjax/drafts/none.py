"""Plain autoregressive decoding: the same program with nothing to verify."""

from __future__ import annotations

import dataclasses

from specjax.drafts.base import Stateless
from specjax.drafts.protocol import Carry, Proposal, RoundContext, no_proposal


@dataclasses.dataclass(frozen=True)
class NoDraft(Stateless):
    """Proposes nothing, so that every round emits one token.

    Attributes:
        width: how many draft slots to leave empty. 0 scores one token a round, which is fastest. With the
            gamma of a speculative run the compiled shapes are the same as there (if neither has
            `verify_widths`), and so is every rounding of a matrix product: greedy tokens must then be equal
            bit for bit.
    """

    width: int = 0

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError(f"NoDraft.width is {self.width}; expected at least 0")

    def slots(self, gamma: int) -> int:
        return self.width

    def propose(self, module: None, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        return no_proposal(context.length.shape[0], context.gamma), carry
