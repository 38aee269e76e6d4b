"""What every draft is: something that guesses the next tokens, and says from which law it drew them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from specjax.models.layers import compute_dtype
from specjax.sampling import Draw, Noise, Pipeline, RowSampling, draw

if TYPE_CHECKING:
    from specjax.policies import Policy

Carry = Any  # any pytree of arrays
Features = tuple[jax.Array, ...]  # float[B, T, d] each


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
    """The guesses of one round. Rules see one row of it, without the leading B.

    Attributes:
        tokens: int32[B, gamma]. Only the live ones mean something.
        live: int32[B] in 0..gamma, how many of the slots are proposed. Whether slot i is live may depend on
            the row's history, its earlier slots and the draft's law at i, never on the token drawn at i.
        log_q: float[B, gamma, V], the very law each token was drawn from, over the target's ids; None for
            drafts that propose deterministically (a point mass).
        failed: bool[B], the draft's own logits were not finite this round.
    """

    tokens: jax.Array
    live: jax.Array
    log_q: jax.Array | None
    failed: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a round. Token `emitted[j]` follows `scored[j]`, and was chosen by `logits[j]`.

    Attributes:
        scored: int32[B, T], what the target read: the last committed token, then the draft.
        live: int32[B], draft tokens that were proposed; `scored` means something up to and with slot `live`.
        accepted: int32[B], draft tokens that became text.
        emitted: int32[B, T], what the round added to the text.
        count: int32[B], how much of it is real; 0 in rows that had finished.
        length: int32[B], committed length now.
        features: float[B, T, d] for each of `Draft.taps`, the target's states at the scored tokens.
        logits: float[B, T, V], the target's raw ones.
    """

    scored: jax.Array
    live: jax.Array
    accepted: jax.Array
    emitted: jax.Array
    count: jax.Array
    length: jax.Array
    features: Features
    logits: jax.Array

    @property
    def start(self) -> jax.Array:
        """int32[B], the position of the first scored token."""
        return self.length - self.count - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundContext:
    """What a draft may look at, at the start of a round.

    Attributes:
        tokens: int32[B, N], committed text; arbitrary beyond `length`.
        length: int32[B], committed length.
        running: bool[B], rows that are not finished.
        max_live: int32[B], how many draft tokens are wanted: what the length policy allows, 0 in finished
            rows, less than gamma near the end of the budget.
        gamma: draft slots of a round.
        widths: how many tokens the target may score in a round, ascending, the last gamma + 1: if there are
            more than one, a shorter proposal costs less to verify.
        vocab_size: V, the target's.
        chunk: tokens in one step of a catch-up.
        target: the target's module.
        cache: the target's, valid below `length - 1`. The round will score into it, so a draft may read it
            but has to leave it as it is.
        rows: the draft's sampling settings, greedy where the target is.
        law_needed: bool[], whether any row is sampled.
        noise: batched, [B].
        pipeline, processor_states: the processors and their states after the committed text.
        policy, policy_state: decide whether a slot is proposed; see `draw_tokens`.
    """

    tokens: jax.Array
    length: jax.Array
    running: jax.Array
    max_live: jax.Array
    gamma: int
    widths: tuple[int, ...]
    vocab_size: int
    chunk: int
    target: Any
    cache: Any
    rows: RowSampling
    law_needed: jax.Array
    noise: Noise
    pipeline: Pipeline
    processor_states: Any
    policy: Policy
    policy_state: Any

    def draw(self, states: Any, raw: jax.Array, slot: jax.Array | int) -> Draw:
        """Draws the token of `slot` from the draft's logits float[B, V], with processor states `states`."""
        raw = raw.astype(compute_dtype(raw.dtype))
        processed = self.pipeline.process(self.rows, states, raw)
        return draw(self.rows, raw, processed, self.noise, slot, law_needed=self.law_needed)


class Draft(Protocol):
    """A kind of draft. Instances are static: hashable, and equal when they compile to the same program.

    Arrays live elsewhere: weights in `module`, which is handed back to every method after being split and
    merged together with the target (so that shared parameters stay shared), and everything else in the carry
    that `init` makes, whose leaves lead with B and whose structure every method keeps. `base.BaseDraft` has
    defaults for most of it.
    """

    @property
    def module(self) -> Any:
        """The draft's own model, or a tuple of several; None if it has none."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's states that the draft wants: inputs of these layers, see `LayeredModel`."""
        ...

    def without_module(self) -> Draft:
        """The static part alone."""
        ...

    def check_target(self, target: Any) -> None:
        """Raises ValueError if the target lacks what this draft needs of it."""
        ...

    def slots(self, gamma: int) -> int:
        """Draft slots of a round when the configuration asks for `gamma`."""
        ...

    def init(self, module: Any, batch: int, capacity: int, vocab_size: int) -> Carry:
        """An empty carry.

        Args:
            capacity: tokens of a row at most, slack for scratch writes included.
            vocab_size: V, the target's.
        """
        ...

    def absorb(
        self,
        module: Any,
        carry: Carry,
        features: Features,
        next_tokens: jax.Array,
        start: jax.Array,
        count: jax.Array,
    ) -> Carry:
        """Takes in what the target thought of committed tokens; called while a prompt is fed, with `taps`.

        No position comes twice and none is left out, up to the one before the last committed token. Rounds
        are left to `commit`, which may end in this: an outcome holds the same.

        Args:
            features: float[B, T, d] for each of `taps`, at positions `start` to `start + T - 1`.
            next_tokens: int32[B, T], the tokens that follow those positions.
            start: int32[B]. count: int32[B] in 0..T, how many of them are real.
        """
        ...

    def prefill(self, module: Any, carry: Carry, tokens: jax.Array, length: jax.Array, chunk: int) -> Carry:
        """Takes in committed text int32[B, N] up to `length` int32[B], `chunk` tokens a step."""
        ...

    def propose(self, module: Any, carry: Carry, context: RoundContext) -> tuple[Proposal, Carry]:
        """Guesses the tokens after the committed text."""
        ...

    def commit(self, module: Any, carry: Carry, proposal: Proposal, outcome: Outcome) -> Carry:
        """Learns what became of its proposal."""
        ...

    def cached_length(self, carry: Carry) -> jax.Array | None:
        """int32[B], how much committed text the carry accounts for; None without a cache."""
        ...


def no_proposal(batch: int, gamma: int) -> Proposal:
    """A proposal of which nothing is live."""
    return Proposal(
        tokens=jnp.zeros((batch, gamma), jnp.int32),
        live=jnp.zeros(batch, jnp.int32),
        log_q=None,
        failed=jnp.zeros(batch, jnp.bool_),
    )


def propose_if_wanted(
    draft: Draft, module: Any, carry: Carry, context: RoundContext
) -> tuple[Proposal, Carry]:
    """`draft.propose`; in a round in which no row may propose anything the draft does not run."""

    def propose(carry: Carry) -> tuple[Proposal, Carry]:
        return draft.propose(module, carry, context)

    def sit_out(carry: Carry) -> tuple[Proposal, Carry]:
        shapes, _ = jax.eval_shape(propose, carry)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), carry

    return jax.lax.cond(jnp.any(context.max_live > 0), propose, sit_out, carry)
