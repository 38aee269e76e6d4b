"""Compiled programs for repeated calls, and the functions built on them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.decoding import admission, loop
from specjax.decoding.arguments import check_capacity, concrete, make_request, prompt_arrays
from specjax.decoding.config import DecodeConfig
from specjax.decoding.invariants import raise_on_violation
from specjax.decoding.program import Program
from specjax.decoding.round import Scored, round_context, round_noise, score_round
from specjax.decoding.state import DecodeState, GenerateResult, Request
from specjax.decoding.stop import Stop
from specjax.drafts import Draft, NoDraft, Proposal
from specjax.models.sharding import constrain_rows, left_to_xla, mesh_of, with_auto_axes
from specjax.sampling import Processor, Sampling

if TYPE_CHECKING:
    from specjax.plan import Plan


@dataclasses.dataclass(frozen=True)
class StreamUpdate:
    """What a few rounds have added.

    Attributes:
        tokens: for each row the new tokens, int32[k] with its own k >= 0.
        finish_reasons: int32[B], `FinishReason`.
    """

    tokens: list[np.ndarray]
    finish_reasons: np.ndarray


class Decoder:
    """A target, a draft and a configuration, with the programs that were compiled for them.

    Weights are split off once. Programs compile on first use, one for each prompt shape, and are shared by
    all decoders that would compile to the same.

    Attributes:
        target: a model that conforms to `specjax.models.ScoringModel`.
        draft: a `specjax.drafts` kind.
        config: what is static.

    Raises:
        ValueError: the target lacks what the draft needs of it, such as a tokenizer that maps ids to the same
            strings as the draft's.
    """

    def __init__(
        self,
        target: Any,
        draft: Draft | None = None,
        config: DecodeConfig | None = None,
        *,
        processors: tuple[Processor, ...] = (),
    ) -> None:
        self.target = target
        self.draft: Draft = draft or NoDraft()
        self.config = config or DecodeConfig()
        self.draft.check_target(target)
        # Arrays of processors travel with the weights.
        self._graphdef, weights = nnx.split((target, self.draft.module, tuple(processors)))
        self._weights = with_auto_axes(weights)
        self._mesh = mesh_of(self._weights)
        # By capacity. Asking the cache of all decoders takes a hash of every layer, each time.
        self._found: dict[int, _Programs] = {}

    def generate(
        self,
        prompts: Any,
        prompt_lengths: Any,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        stop: Stop | None = None,
    ) -> GenerateResult:
        """Prefill and every round, in one compiled program. See `specjax.generate`."""
        prompts, lengths, request = self._arguments(prompts, prompt_lengths, sampling, draft_sampling, stop)
        with self._on_mesh():
            out = self._compiled(prompts.shape[1]).generate(self._weights, prompts, lengths, request)
        return self._checked(out)

    def start(
        self,
        prompts: Any,
        prompt_lengths: Any,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        stop: Stop | None = None,
    ) -> DecodeState:
        """Prefills and returns the state before the first round."""
        prompts, lengths, request = self._arguments(prompts, prompt_lengths, sampling, draft_sampling, stop)
        with self._on_mesh():
            return self._compiled(prompts.shape[1]).start(self._weights, prompts, lengths, request)

    def run_rounds(self, state: DecodeState, rounds: int | None = None) -> DecodeState:
        """Runs at most `rounds` more rounds, or to the end. The state given is used up."""
        limit = np.int32(np.iinfo(np.int32).max if rounds is None else rounds)
        with self._on_mesh():
            state = self._compiled_for(state).run(self._weights, state, limit)
        return self._checked(state)

    def extend(
        self,
        state: DecodeState,
        new_prompt_tokens: Any,
        new_lengths: Any,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        stop: Stop | None = None,
    ) -> DecodeState:
        """Appends prompt tokens to the text of rows, so that a conversation goes on without prefilling again.

        The rows' outputs, budgets and statistics start anew. Sampling is that of `start` unless it is given
        anew, and so is what ends a row; seeds keep counting rounds. Needs a `DecodeConfig.capacity` that
        holds the whole conversation. The given state is used up.

        Args:
            new_prompt_tokens: int32[B, P'], right-padded; another P' compiles anew.
            new_lengths: int32[B]; rows with 0 stay as they are, and so does a row that ended with an error.

        Raises:
            TypeError, ValueError: as in `specjax.generate`; also for another number of rows than the state's.
        """
        batch = state.length.shape[0]
        vocab_size = self.target.vocab_size
        tokens, lengths = prompt_arrays(
            new_prompt_tokens, new_lengths, vocab_size, shortest=0, name="new_prompt_tokens"
        )
        if tokens.shape[0] != batch:
            raise ValueError(f"new_prompt_tokens has {tokens.shape[0]} rows; expected {batch}, as the state")
        request = self._request(batch, sampling, draft_sampling, stop)
        request = _inherit(request, state.request, sampling, draft_sampling, stop)
        programs = self._compiled_for(state)
        if concrete(lengths) and concrete(state.length):
            extended = np.asarray(lengths) > 0
            budgets = dataclasses.replace(
                request.stop, max_new_tokens=jnp.where(extended, request.stop.max_new_tokens, 0)
            )
            total = jnp.where(extended, state.length + lengths, 0)
            request_of_extended = dataclasses.replace(request, stop=budgets)
            check_capacity(request_of_extended, total, programs.program.capacity, self.target)
        with self._on_mesh():
            return programs.extend(self._weights, state, tokens, lengths, request)

    def score(self, state: DecodeState) -> Scored:
        """What the next round would decide on: the proposal, and the laws of target and draft.

        For looking at a pair of models; decoding needs no call of it. The state stays usable.
        """
        with self._on_mesh():
            return self._compiled_for(state).score(self._weights, state)

    def propose(self, state: DecodeState) -> Proposal:
        """What the draft would propose in the next round. The state stays usable."""
        with self._on_mesh():
            return self._compiled_for(state).propose(self._weights, state)

    def lower_rounds(self, state: DecodeState) -> jax.stages.Lowered:
        """The loop of `run_rounds`, lowered: its `compile()` tells what memory it takes.

        It is compiled only once, here or by `run_rounds`.
        """
        with self._on_mesh():
            return self._compiled_for(state).run.lower(self._weights, state, np.int32(1))

    def result(self, state: DecodeState) -> GenerateResult:
        """What the rows of a state have generated so far. The state stays usable."""
        return self._compiled_for(state).result(state)

    def stream(
        self,
        prompts: Any,
        prompt_lengths: Any,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        stop: Stop | None = None,
        rounds: int = 1,
    ) -> Iterator[StreamUpdate]:
        """Yields committed tokens every few `rounds`, until every row is finished."""
        state = self.start(
            prompts, prompt_lengths, sampling=sampling, draft_sampling=draft_sampling, stop=stop
        )
        yield from self.stream_state(state, rounds=rounds)

    def stream_state(self, state: DecodeState, *, rounds: int = 1) -> Iterator[StreamUpdate]:
        """Like `stream`, from a state on, which is used up."""
        seen = np.asarray(state.length)
        while True:
            running = bool(np.any(np.asarray(state.running)))
            if running:
                state = self.run_rounds(state, rounds)
            lengths = np.asarray(state.length)
            tokens = np.asarray(state.tokens)
            new = [row[start:stop] for row, start, stop in zip(tokens, seen, lengths, strict=True)]
            seen = lengths
            yield StreamUpdate(new, np.asarray(state.finish_reason))
            if not np.any(np.asarray(state.running)):
                return

    def compile(self, batch: int, prompt_width: int) -> Decoder:
        """Compiles what `generate`, `start`, `run_rounds` and `result` of this shape need.

        It runs them with nothing to generate. `extend` compiles on its first call with each width.
        """
        prompts = np.zeros((batch, prompt_width), np.int32)
        nothing = Stop(max_new_tokens=0)
        lengths = np.ones(batch, np.int32)
        self.generate(prompts, lengths, stop=nothing)
        state = self.run_rounds(self.start(prompts, lengths, stop=nothing))
        jax.block_until_ready(self.result(state))
        return self

    def _on_mesh(self) -> contextlib.AbstractContextManager[Any]:
        """What programs are compiled and called in: on the mesh of the weights, if they lie on one."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def plan(
        self,
        device: str,
        *,
        batch: int,
        prompt_width: int,
        **settings: Any,
    ) -> Plan:
        """What this decoder would need on a device that need not be there. See `specjax.plan.plan`."""
        from specjax.plan import plan

        return plan(self, device, batch=batch, prompt_width=prompt_width, **settings)

    def _arguments(
        self,
        prompts: Any,
        lengths: Any,
        sampling: Sampling | None,
        draft_sampling: Sampling | None,
        stop: Stop | None,
    ) -> tuple[jax.Array, jax.Array, Request]:
        prompts, lengths = prompt_arrays(prompts, lengths, self.target.vocab_size)
        request = self._request(prompts.shape[0], sampling, draft_sampling, stop)
        check_capacity(request, lengths, self.config.row_capacity(prompts.shape[1]), self.target)
        return prompts, lengths, request

    def _request(
        self, batch: int, sampling: Sampling | None, draft_sampling: Sampling | None, stop: Stop | None
    ) -> Request:
        eos_ids = tuple(getattr(self.target, "eos_ids", ()))
        vocab_size = self.target.vocab_size
        return make_request(batch, self.config, vocab_size, sampling, draft_sampling, stop, eos_ids)

    def _compiled(self, prompt_width: int) -> _Programs:
        return self._programs(self.config.row_capacity(prompt_width))

    def _compiled_for(self, state: DecodeState) -> _Programs:
        return self._programs(state.tokens.shape[1])

    def _programs(self, capacity: int) -> _Programs:
        if capacity not in self._found:
            self._found[capacity] = _programs(self._graphdef, self._program(capacity))
        return self._found[capacity]

    def _program(self, capacity: int) -> Program:
        return Program.build(self.target, self.draft, self.config, capacity)

    def _checked(self, out: Any) -> Any:
        if self.config.debug and concrete(out.violations):
            raise_on_violation(out.violations)
        return out


def _inherit(
    request: Request,
    old: Request,
    sampling: Sampling | None,
    draft_sampling: Sampling | None,
    stop: Stop | None,
) -> Request:
    """The request with what was not given taken from the old one, whose buffers may be used up: copies."""
    old = jax.tree.map(jnp.copy, old)
    if stop is None:
        request = dataclasses.replace(request, stop=old.stop)
    if sampling is None:
        request = dataclasses.replace(request, sampling=old.sampling, seed=old.seed)
        if draft_sampling is None:
            request = dataclasses.replace(request, draft_sampling=old.draft_sampling)
    ends = {"eos_ids": request.stop.eos_ids, "max_new_tokens": request.stop.max_new_tokens}
    return dataclasses.replace(
        request,
        sampling=dataclasses.replace(request.sampling, **ends),
        draft_sampling=dataclasses.replace(request.draft_sampling, **ends),
    )


@dataclasses.dataclass(frozen=True)
class _Programs:
    """Jitted functions of one program; each compiles on first use."""

    program: Program
    generate: Any
    start: Any
    run: Any
    extend: Any
    score: Any
    propose: Any
    result: Any


@functools.lru_cache(maxsize=64)
def _programs(graphdef: Any, program: Program) -> _Programs:
    """Shared between decoders, so that repeated `generate` calls never compile the same thing twice."""

    def run(weights: Any, state: DecodeState, limit: jax.Array) -> DecodeState:
        return constrain_rows(loop.run_rounds(*_merged(graphdef, program, weights), state, limit))

    def score(weights: Any, state: DecodeState) -> Scored:
        merged = _merged(graphdef, program, weights)
        return score_round(*merged, state, round_noise(merged[0], state))[0]

    def propose(weights: Any, state: DecodeState) -> Proposal:
        merged, target, draft_module = _merged(graphdef, program, weights)
        context = round_context(merged, target, state, round_noise(merged, state))
        return merged.draft.propose(draft_module, state.draft, context)[0]

    start, extend = _admission_programs(graphdef, program.for_admission())
    return _Programs(
        program=program,
        generate=jax.jit(functools.partial(_generate, graphdef, program)),
        start=start,
        run=jax.jit(run, donate_argnums=1),
        extend=extend,
        score=jax.jit(score),
        propose=jax.jit(propose),
        result=jax.jit(functools.partial(loop.result, program)),
    )


@functools.lru_cache(maxsize=64)
def _admission_programs(graphdef: Any, program: Program) -> tuple[Any, Any]:
    """`start` and `extend`, jitted."""

    def start(weights: Any, prompts: jax.Array, lengths: jax.Array, request: Request) -> DecodeState:
        state = admission.start(*_merged(graphdef, program, weights), prompts, lengths, request)
        return constrain_rows(state)

    def extend(
        weights: Any, state: DecodeState, tokens: jax.Array, lengths: jax.Array, request: Request
    ) -> DecodeState:
        merged = _merged(graphdef, program, weights)
        return constrain_rows(admission.admit(*merged, state, tokens, lengths, request))

    return jax.jit(start), jax.jit(extend, donate_argnums=1)


def _generate(
    graphdef: Any, program: Program, weights: Any, prompts: jax.Array, lengths: jax.Array, request: Request
) -> GenerateResult:
    merged = _merged(graphdef, program, weights)
    state = admission.start(*merged, prompts, lengths, request)
    return loop.result(program, loop.run_rounds(*merged, state))


def _merged(graphdef: Any, program: Program, weights: Any) -> tuple[Program, Any, Any]:
    target, draft_module, processors = nnx.merge(graphdef, weights)
    return program.with_processors(processors), target, draft_module


def generate(
    target: Any,
    prompts: Any,
    prompt_lengths: Any,
    *,
    draft: Draft | None = None,
    config: DecodeConfig | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    stop: Stop | None = None,
    processors: tuple[Processor, ...] = (),
) -> GenerateResult:
    """Generates from a batch of prompts, faster for the draft and the same for any draft.

    Token for token the target's own greedy text where `sampling.temperature` is 0, and distributed exactly
    as the target's own samples elsewhere. Prefill and all rounds are one compiled program; it is reused by
    every call with the same shapes, configuration and kinds of models.

    Args:
        target: a model that conforms to `specjax.models.ScoringModel`, such as `specjax.load(...).model`.
        prompts: int32[B, P], right-padded. prompt_lengths: int32[B], at least 1.
        draft: `specjax.drafts.NoDraft()` (the default), `Ngram()`, `Model(module)`, ...
        config: what is static.
        sampling, draft_sampling: how tokens are drawn; the draft's default is the target's.
        stop: what ends a row; the default is the model's own EOS ids and `config.max_new_tokens`.
        processors: the caller's own, see `specjax.sampling.Processor`.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message names it, its value and what was
            expected. Values that are being traced cannot be looked at: such a row ends with
            `FinishReason.ERROR`.
        InvariantError: with `config.debug`, an invariant broke.

    References:
        Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192.
        Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling", arXiv 2302.01318.
    """
    decoder = Decoder(target, draft, config, processors=processors)
    return decoder.generate(
        prompts, prompt_lengths, sampling=sampling, draft_sampling=draft_sampling, stop=stop
    )


def decode(
    target: Any,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    *,
    draft: Draft | None = None,
    config: DecodeConfig | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    stop: Stop | None = None,
    processors: tuple[Processor, ...] = (),
) -> GenerateResult:
    """`generate` as a pure function without a `jit` of its own, for use inside the caller's.

    Arguments and errors are those of `generate`.
    """
    draft, config = draft or NoDraft(), config or DecodeConfig()
    draft.check_target(target)
    prompts, lengths = prompt_arrays(prompts, prompt_lengths, target.vocab_size)
    batch, width = prompts.shape
    program = Program.build(target, draft, config, config.row_capacity(width))
    eos_ids = tuple(getattr(target, "eos_ids", ()))
    request = make_request(batch, config, target.vocab_size, sampling, draft_sampling, stop, eos_ids)
    check_capacity(request, lengths, program.capacity, target)
    graphdef, weights = nnx.split((target, draft.module, tuple(processors)))
    run = functools.partial(_generate, graphdef, program)
    return left_to_xla(run, prompts)(weights, prompts, lengths, request)
