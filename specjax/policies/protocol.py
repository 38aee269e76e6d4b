"""What a length policy is: how many draft tokens each row proposes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax

if TYPE_CHECKING:
    from specjax.drafts.protocol import Outcome, RoundContext

State = Any  # any pytree of arrays


class Policy(Protocol):
    """Decides how many draft tokens are worth their cost. Instances are static: hashable, compared by value.

    What a policy may look at is all that keeps decoding exact: whether slot i is proposed may follow from
    past rounds, from the tokens in the slots before it and from the law that its token will be drawn from,
    never from the token itself, nor from what the target says of it. (With a ratio test, dropping a token
    because it came out unlikely shifts the law by total variations of 0.2.) The methods are given nothing
    else. The block rule also needs to know where a row has stopped, which is `Proposal.live`.

    Policies that look at one row at a time keep a row's text independent of its neighbours.

    Attributes:
        may_sit_out: whether `limit` can be 0 for all rows. The draft then does not run in such a round.
    """

    @property
    def may_sit_out(self) -> bool: ...

    def check(self, gamma: int) -> None:
        """Raises ValueError if the policy makes no sense for so many draft slots."""
        ...

    def init(self, batch: int, gamma: int) -> State:
        """The state of new rows; leaves lead with B."""
        ...

    def limit(self, state: State, context: RoundContext) -> jax.Array:
        """int32[B] in 0..`context.max_live`: draft tokens at most, before a round begins."""
        ...

    def continues(self, state: State, log_law: jax.Array, slot: jax.Array) -> jax.Array:
        """bool[B]: whether the token of `slot` is proposed, before it is drawn.

        Asked of drafts that have a law, slot by slot, until it says no.

        Args:
            log_law: float[B, V], log-probabilities of the token; greedy rows see their model's law, although
                they will take its likeliest token.
            slot: int32[].
        """
        ...

    def update(self, state: State, outcome: Outcome) -> State:
        """Learns from a round. Rows that did not run, where `outcome.count` is 0, are put back afterwards."""
        ...
