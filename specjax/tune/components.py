"""What the parts of a round cost on this device, each measured in a compiled loop of its own.

The loops run over a real `DecodeState`, at the length that its rows have, so attention sees caches as full as
they are in use. Lengths stay where they are: a step is undone before the next one, and writes the same slots.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.bench.timing import Arm, interleave
from specjax.decoding import DecodeConfig, DecodeState
from specjax.decoding.program import Program
from specjax.decoding.round import decode_round, round_context, round_noise
from specjax.drafts import Draft, NoDraft, Outcome, Proposal
from specjax.sampling import likeliest

# Of a program, the target, the draft's module and a state: the state after one step.
Step = Callable[[Program, Any, Any, DecodeState], DecodeState]
# Runs so many steps on the device and returns when they are done. Compiles on first use.
Loop = Callable[[int], None]


class Bench:
    """A state that loops run over. They share it, as its caches may be large: each takes it and puts it back.

    Args:
        target: a `specjax.models.ScoringModel`.
        draft: the kind whose carry the state holds.
        config: of the decoder that made the state; its gamma is the largest that is measured.
        state: it is used up.
    """

    def __init__(self, target: Any, draft: Draft, config: DecodeConfig, state: DecodeState) -> None:
        self._target = target
        self._draft = draft
        self._config = dataclasses.replace(config, verify_widths=())
        # A row that has ended would propose nothing.
        self._state = dataclasses.replace(state, finish_reason=jnp.zeros_like(state.finish_reason))
        self._graphdef, self._weights = nnx.split((target, draft.module))

    def scoring(self, width: int) -> Loop:
        """The target's forward pass over `width` tokens of each row, head included: the verify step."""
        return self._loop(functools.partial(_score, width), self._draft, self._config)

    def proposing(self, gamma: int) -> Loop:
        """The draft's proposal of `gamma` tokens, and what it takes to go on after a rejection."""
        return self._loop(_propose, self._draft, dataclasses.replace(self._config, gamma=gamma))

    def plain_round(self, width: int) -> Loop:
        """A whole round that scores `width` tokens, none of them drafted; plain decoding for a width of 1."""
        return self._loop(_plain_round, NoDraft(width=width - 1), self._config)

    def _loop(self, step: Step, draft: Draft, config: DecodeConfig) -> Loop:
        program = Program.build(self._target, draft, config, self._state.tokens.shape[1])

        @functools.partial(jax.jit, donate_argnums=1)
        def run(weights: Any, state: DecodeState, steps: jax.Array) -> DecodeState:
            target, module = nnx.merge(self._graphdef, weights)
            return jax.lax.fori_loop(0, steps, lambda _, state: step(program, target, module, state), state)

        def run_steps(steps: int) -> None:
            self._state = jax.block_until_ready(run(self._weights, self._state, np.int32(steps)))

        return run_steps


def measure(
    loops: Mapping[str, Loop], *, repeats: int, seconds: float, longest: int = 256
) -> dict[str, list[float]]:
    """Seconds of one step of each loop, in turns, so that whatever slows the machine slows all of them.

    Args:
        repeats: turns.
        seconds: about how long a loop runs in a turn, which decides its number of steps.
        longest: steps at most.
    """
    steps = {}
    for name, loop in loops.items():
        loop(1)  # compiles
        begun = time.perf_counter()
        loop(2)
        steps[name] = int(np.clip(2 * seconds / (time.perf_counter() - begun), 2, longest))
    arms = [Arm(name=name, run=functools.partial(loop, steps[name])) for name, loop in loops.items()]
    samples = interleave(arms, repeats, warmup=0)
    return {name: [sample.seconds / steps[name] for sample in taken] for name, taken in samples.items()}


def without_draft(state: DecodeState, gamma: int) -> DecodeState:
    """The state as a decoder with `NoDraft(width=gamma)` has it; arrays are shared, nothing is prefilled."""
    drafted_at, accepted_at = jnp.zeros((2, state.length.shape[0], gamma), jnp.int32)
    stats = dataclasses.replace(state.stats, drafted_at=drafted_at, accepted_at=accepted_at)
    return dataclasses.replace(state, draft=(), stats=stats)


def _score(width: int, program: Program, target: Any, module: Any, state: DecodeState) -> DecodeState:
    positions = state.cached_length[:, None] + jnp.arange(width, dtype=jnp.int32)
    tokens = jnp.take_along_axis(state.tokens, jnp.minimum(positions, state.tokens.shape[1] - 1), axis=1)
    hidden, _, pending = target(tokens, positions, state.cache)
    found = likeliest(target.logits(hidden))
    cache = target.commit(state.cache, pending, state.cached_length, jnp.full_like(state.length, width))
    # The next step scores what this one found: no step can be left out.
    return dataclasses.replace(state, tokens=_set_behind(state, found), cache=cache)


def _propose(program: Program, target: Any, module: Any, state: DecodeState) -> DecodeState:
    context = round_context(program, target, state, round_noise(program, state))
    proposal, carry = program.draft.propose(module, state.draft, context)
    tokens = proposal.tokens
    if proposal.log_q is not None:
        # Acceptance reads the law at the tokens; unread, it might not be stored.
        read = jnp.take_along_axis(proposal.log_q, tokens[..., None], axis=-1)[..., 0]
        tokens = jnp.where(jnp.isnan(read), 0, tokens)
    carry = program.draft.commit(module, carry, proposal, _rejected(program, target, state, proposal))
    return dataclasses.replace(state, tokens=_set_behind(state, tokens), draft=carry, round=state.round + 1)


def _rejected(program: Program, target: Any, state: DecodeState, proposal: Proposal) -> Outcome:
    """The outcome of a round that accepts nothing, and whose own token is taken back at once."""
    batch, gamma = proposal.tokens.shape
    tokens = jax.ShapeDtypeStruct((batch, gamma + 1), jnp.int32)
    score = functools.partial(target, taps=program.draft.taps)
    _, features, _ = jax.eval_shape(score, tokens, tokens, state.cache)
    block = jnp.zeros((batch, gamma + 1), jnp.int32)
    nothing = jnp.zeros_like(state.length)
    return Outcome(
        scored=block,
        live=proposal.live,
        accepted=nothing,
        emitted=block,
        count=nothing,
        length=state.length,
        features=jax.tree.map(lambda feature: jnp.zeros(feature.shape, feature.dtype), features),
        logits=jnp.zeros((batch, gamma + 1, program.vocab_size), jnp.float32),
    )


def _plain_round(program: Program, target: Any, module: Any, state: DecodeState) -> DecodeState:
    after = decode_round(program, target, None, without_draft(state, program.gamma))
    return dataclasses.replace(
        after,
        length=state.length,
        cached_length=state.cached_length,
        finish_reason=state.finish_reason,
        draft=state.draft,
        stats=state.stats,
    )


def _set_behind(state: DecodeState, tokens: jax.Array) -> jax.Array:
    """The text with tokens int32[B, T] behind its end, where they are no part of it."""
    places = state.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    return state.tokens.at[jnp.arange(tokens.shape[0])[:, None], places].set(tokens, mode="drop")
