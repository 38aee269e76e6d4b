"""As many draft tokens as have paid so far."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from specjax.policies.base import BasePolicy

if TYPE_CHECKING:
    from specjax.drafts.protocol import Outcome, RoundContext

# Time of a round over that of one without a draft, for each draft token more. On CPUs each token scored costs
# time; elsewhere verifying waits for the weights, as plain decoding does, and this is the draft's share.
_CPU_SLOPE, _SLOPE = 0.15, 0.1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What a row has seen.

    Attributes:
        tried: float32[B, gamma], rounds in which the token of a position was proposed and all before it were
            accepted; older rounds count less. accepted: those of them in which it was accepted, too.
        length: int32[B], the number of tokens to propose.
    """

    tried: jax.Array
    accepted: jax.Array
    length: jax.Array

    @property
    def expected_tokens(self) -> jax.Array:
        """float32[B, gamma + 1]: E[N] = 1 + sum_i P(first i accepted) of proposals of 0 to gamma tokens.

        A position's rate counts one round more, accepted as often as the position before it is: what was
        never tried is guessed from what was, and what was tried long ago is slowly forgotten. The first
        position's extra round is an accepted one, so that every row begins by drafting, and tries again
        after a while.
        """
        batch, gamma = self.tried.shape
        rate = jnp.ones(batch, jnp.float32)
        survived = [rate]
        for position in range(gamma):
            rate = (self.accepted[:, position] + rate) / (self.tried[:, position] + 1)
            survived.append(survived[-1] * rate)
        return jnp.cumsum(jnp.stack(survived, axis=1), axis=1)

    def after(self, outcome: Outcome, memory: float) -> Acceptance:
        """With one round more; `memory` is what the others count from now on."""
        positions = jnp.arange(self.tried.shape[1], dtype=jnp.int32)
        accepted = positions < outcome.accepted[:, None]
        reached = (positions < outcome.live[:, None]) & (positions <= outcome.accepted[:, None])
        return dataclasses.replace(
            self, tried=memory * self.tried + reached, accepted=memory * self.accepted + accepted
        )


@dataclasses.dataclass(frozen=True)
class Adaptive(BasePolicy):
    """Proposes, in each row, as many tokens as yield most per time, by the row's own acceptance so far.

        argmax over g = 0..gamma of E[N | g] / T[g],    E[N | g] = 1 + sum_{i <= g} P(first i accepted)

    (Leviathan et al., arXiv 2211.17192; Liu et al., "Optimizing Speculative Decoding for Serving Large
    Language Models Using Goodput", arXiv 2406.14066.) Zero is one of the choices: where guessing does not
    pay, a row decodes plainly, and tries again when what it knows has become old. A row that proposes less
    saves time only with narrower `DecodeConfig.verify_widths`, 1 among them for plain rounds, or where all
    rows stop drafting earlier: a batch is as slow as its longest proposal (see `BatchAdaptive`).

    Attributes:
        cost: T[g], time of a round that proposes g = 0, 1, ..., gamma tokens, in any unit: what `specjax
            tune` measures. None: a guess for the kind of device, 1 + 0.15 g on CPUs and 1 + 0.1 g elsewhere.
        memory: how much a round still counts after the next one; 1 / (1 - memory) rounds are remembered.
        margin: by what share another length has to be better than the present one.
    """

    cost: tuple[float, ...] | None = None
    memory: float = 0.97
    margin: float = 0.05

    def __post_init__(self) -> None:
        kind, cost = type(self).__name__, self.cost
        if cost is not None:
            object.__setattr__(self, "cost", tuple(cost))
            if not all(math.isfinite(seconds) and seconds > 0 for seconds in cost):
                raise ValueError(f"{kind}.cost is {cost}; expected times above 0")
        if not 0 < self.memory < 1:
            raise ValueError(f"{kind}.memory is {self.memory}; expected a number between 0 and 1")
        if not self.margin >= 0:
            raise ValueError(f"{kind}.margin is {self.margin}; expected at least 0")

    @property
    def may_sit_out(self) -> bool:
        return True

    def check(self, gamma: int) -> None:
        if self.cost is not None and len(self.cost) <= gamma:
            raise ValueError(
                f"{type(self).__name__}.cost has {len(self.cost)} times; expected gamma + 1, {gamma + 1}: of "
                "rounds with 0 to gamma draft tokens"
            )

    def init(self, batch: int, gamma: int) -> Acceptance:
        nothing = jnp.zeros((batch, gamma), jnp.float32)
        return Acceptance(tried=nothing, accepted=nothing, length=jnp.full(batch, gamma, jnp.int32))

    def limit(self, state: Acceptance, context: RoundContext) -> jax.Array:
        return jnp.minimum(state.length, context.max_live)

    def update(self, state: Acceptance, outcome: Outcome) -> Acceptance:
        state = state.after(outcome, self.memory)
        value = self._tokens(state, outcome) / self._times(state.tried.shape[1])
        best = jnp.argmax(value, axis=1).astype(jnp.int32)
        present, found = (
            jnp.take_along_axis(value, length[:, None], axis=1)[:, 0] for length in (state.length, best)
        )
        better = found > (1 + self.margin) * present
        return dataclasses.replace(state, length=jnp.where(better, best, state.length))

    def _tokens(self, state: Acceptance, outcome: Outcome) -> jax.Array:
        """float32[B, gamma + 1]: what a choice yields."""
        return state.expected_tokens

    def _times(self, gamma: int) -> jax.Array:
        """float32[gamma + 1]: T[g]."""
        if self.cost is not None:
            return jnp.array(self.cost[: gamma + 1], jnp.float32)
        tokens = jnp.arange(gamma + 1, dtype=jnp.float32)
        # Of the platform that is compiled for, not the one that compiles.
        slope = jax.lax.platform_dependent(
            cpu=lambda: jnp.float32(_CPU_SLOPE), default=lambda: jnp.float32(_SLOPE)
        )
        return 1 + slope * tokens


@dataclasses.dataclass(frozen=True)
class BatchAdaptive(Adaptive):
    """One length for the whole batch: the one that yields most tokens of all rows per time.

        argmax over g = 0..gamma of sum_rows E[N | g] / T[g]

    All rows wait for the longest proposal, so where rows differ this is faster than a length for each. It
    keeps the target's law, since past rounds of other rows may decide on a length. But a row's tokens then
    depend on its neighbours; under the coupled rule and in greedy rows they do not.
    """

    def _tokens(self, state: Acceptance, outcome: Outcome) -> jax.Array:
        running = (outcome.count > 0)[:, None]
        total = jnp.sum(jnp.where(running, state.expected_tokens, 0.0), axis=0)
        return jnp.broadcast_to(total, state.expected_tokens.shape)
