"""Compiling a decoder for a device that need not be there."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.decoding import Decoder, DecodeState
from specjax.decoding.round import decode_round
from specjax.drafts import Model, NoDraft
from specjax.hlo import findings, module, traffic
from specjax.models.sharding import MODEL
from specjax.plan import roofline
from specjax.plan.abstract import (
    Arguments,
    cache_arrays,
    device_bytes,
    device_shapes,
    draft_cache_arrays,
    full_state,
    place,
    place_like,
)
from specjax.plan.devices import Placement, describe, placement
from specjax.plan.plan import PASSES, Compiled, Memory, Plan, Step

Progress = Callable[[str], Any]


def plan(
    decoder: Decoder,
    device: str,
    *,
    batch: int,
    prompt_width: int,
    mesh: Mapping[str, int] | None = None,
    passes: Collection[str] = PASSES,
    progress: Progress = lambda message: None,
) -> Plan:
    """Compiles what a decoder needs for a device and reports on it; nothing runs, no weights are needed.

    Args:
        decoder: with real weights or abstract ones; see `specjax.plan.abstract.abstract_decoder`.
        device: `"h200"`, `"cpu"`, or a TPU topology, such as `"v5e:2x4"`.
        batch, prompt_width: rows, and tokens that their prompts are padded to.
        mesh: devices along the axes `data` (rows) and `model` (weights and caches); empty: one device.
        passes: what is also compiled on its own, to count what it moves and predict its speed; see `Step`.
        progress: told what is being compiled.

    Raises:
        ValueError: an argument makes no sense.
        ImportError: the compiler for the device is not installed.
    """
    for name, value in (("batch", batch), ("prompt_width", prompt_width)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; expected an integer of at least 1")
    mesh = dict(mesh or {})
    where = placement(device, mesh)
    return _Planner(decoder, device, where, batch, prompt_width, progress).plan(mesh, passes)


def largest_batch(
    decoder: Decoder,
    device: str,
    *,
    prompt_width: int,
    mesh: Mapping[str, int] | None = None,
    passes: Collection[str] = PASSES,
    progress: Progress = lambda message: None,
) -> Plan:
    """The plan with the most rows that fit.

    What does not grow with the rows is taken to be the weights alone, so that estimates from a size that fits
    are low; each is compiled, until it grows no more. Where one does not fit, the search halves the rest.

    Raises:
        ValueError: not even one row for each device along `data` fits, or the device's memory is not known.
    """
    mesh = dict(mesh or {})
    where = placement(device, mesh)
    capacity = describe(device).memory_bytes
    if capacity is None:
        raise ValueError(f"the memory of {device} is not known; expected a device with published figures")
    unit = mesh.get("data", 1)

    def tried(batch: int, passes: Collection[str] = ()) -> Plan:
        progress(f"{batch} rows")
        return _Planner(decoder, device, where, batch, prompt_width, progress).plan(mesh, passes)

    best, too_many = tried(unit), None
    if not best.memory.fits:
        raise ValueError(f"not even a batch of {unit} fits on {device}: {'; '.join(best.faults)}")
    while True:
        if too_many is None:
            fixed = best.memory.target_weights + best.memory.draft_weights
            rows = int((capacity - fixed) * best.batch / (best.memory.total - fixed))
        else:
            rows = (best.batch + too_many) // 2
        rows = rows // unit * unit
        if rows <= best.batch:
            return tried(best.batch, passes) if passes else best
        candidate = tried(rows)
        if candidate.memory.fits:
            best = candidate
        else:
            too_many = rows


class _Planner:
    """A decoder and shapes on a device."""

    def __init__(
        self,
        decoder: Decoder,
        device: str,
        where: Placement,
        batch: int,
        prompt_width: int,
        progress: Progress,
    ) -> None:
        self.decoder, self.device, self.where = decoder, device, where
        self.batch, self.prompt_width, self.progress = batch, prompt_width, progress
        self.published = describe(device)
        self.arguments = Arguments.of(decoder, batch, prompt_width, where)
        self.programs = decoder._compiled(prompt_width)

    def plan(self, mesh: dict[str, int], passes: Collection[str]) -> Plan:
        compiled: list[Compiled] = []
        steps: list[Step] = []
        refused = None
        state = place(self._state(self.decoder), self.where)
        try:
            start, state = self._start(state)
            compiled.append(start)
            compiled.append(self._run(state))
            steps.extend(self._steps(state, passes))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refused = " ".join(str(error).split())
        return Plan(
            device=self.device,
            mesh=mesh,
            batch=self.batch,
            prompt_width=self.prompt_width,
            capacity=self.programs.program.capacity,
            gamma=self.programs.program.gamma,
            memory=self._memory(state, compiled, refused),
            programs=tuple(compiled),
            steps=tuple(steps),
            refused=refused,
            unsplit=mesh.get(MODEL, 1) > 1 and not _is_split(self.arguments.weights),
        )

    def _memory(self, state: DecodeState, compiled: list[Compiled], refused: str | None) -> Memory:
        target, draft, processors = _weight_bytes(self.arguments.weights)
        target_cache = device_bytes(state.cache)
        draft_cache = device_bytes(list(draft_cache_arrays(state)))
        held = target + draft + processors + device_bytes(state)
        padded = max((program.argument_bytes for program in compiled if program.name == "run"), default=held)
        return Memory(
            target_weights=target,
            draft_weights=draft,
            target_cache=target_cache,
            draft_cache=draft_cache,
            other_state=device_bytes(state) - target_cache - draft_cache + processors,
            padding=max(padded - held, 0),
            temporaries=None if refused else max(program.temporary_bytes for program in compiled),
            capacity=self.published.memory_bytes,
        )

    def _state(self, decoder: Decoder) -> DecodeState:
        """The shapes of a state, of the whole mesh."""
        given = self.arguments
        start = decoder._compiled(self.prompt_width).start
        with self._on_mesh():
            return jax.eval_shape(start, decoder._weights, given.prompts, given.lengths, given.request)

    def _start(self, state: DecodeState) -> tuple[Compiled, DecodeState]:
        """The prefill, and the state that it returns, where the compiler puts it."""
        given = self.arguments
        request = place(given.request, self.where)
        arguments = (given.weights, given.prompts, given.lengths, request)
        executable, seconds = self._compile("the prefill", self.programs.start, *arguments)
        state = place_like(state, executable.output_shardings)
        return self._facts("start", executable, seconds, state), state

    def _run(self, state: DecodeState) -> Compiled:
        limit = jax.ShapeDtypeStruct((), jnp.int32, sharding=self.where.default)
        arguments = (self.arguments.weights, state, limit)
        executable, seconds = self._compile("the loop of rounds", self.programs.run, *arguments)
        return self._facts("run", executable, seconds, state)

    def _facts(self, name: str, executable: Any, seconds: float, state: DecodeState) -> Compiled:
        program = module.parse(executable)
        shapes = device_shapes(list(cache_arrays(state)))
        donated = name == "run"
        loop = findings.loop_of_rounds(program) if donated else None
        everywhere = findings.cache_copies(program, shapes)
        repeated = findings.cache_copies(program, shapes, loop)
        memory = executable.memory_analysis()
        arrays = len(jax.tree.leaves(state))
        return Compiled(
            name=name,
            compile_seconds=seconds,
            argument_bytes=memory.argument_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
            donated_bytes=device_bytes(state) if donated else 0,
            alias_bytes=memory.alias_size_in_bytes,
            unaliased=arrays - len(program.aliased_parameters) if donated else 0,
            copies=tuple(repeated),
            copies_once=tuple(copy for copy in everywhere if copy not in repeated),
            host_transfers=tuple(findings.host_transfers(program)),
            row_write_loops=findings.row_write_loops(program, shapes, loop),
        )

    def _steps(self, state: DecodeState, passes: Collection[str]) -> Iterator[Step]:
        """Some kinds of passes, on their own."""
        target, draft, processors = nnx.merge(self.decoder._graphdef, self.arguments.weights)
        gamma = self.programs.program.gamma
        config = dataclasses.replace(self.decoder.config, verify_widths=())
        ideal = _weight_bytes(self.arguments.weights)[0] + self._valid_bytes(target, state.cache)
        for name, width in (("plain", 0), ("verify", gamma)):
            if name in passes:
                alone = Decoder(target, NoDraft(width=width), config, processors=processors)
                yield self._step(name, alone, alone._weights, self._state_alone(alone, state.cache), ideal)
        if isinstance(self.decoder.draft, Model):
            alone = Decoder(draft, NoDraft(), config)
            of_draft = device_bytes(alone._weights) + self._valid_bytes(draft, state.draft.cache)
            if "draft" in passes:
                of_state = self._state_alone(alone, state.draft.cache)
                yield self._step("draft", alone, alone._weights, of_state, of_draft)
            ideal += gamma * of_draft
        if "round" in passes:
            yield self._step("round", self.decoder, self.arguments.weights, state, ideal)

    def _step(
        self, name: str, decoder: Decoder, weights: Any, state: DecodeState, ideal_bytes: float
    ) -> Step:
        program = decoder._compiled(self.prompt_width).program
        full = full_state(state, self.arguments.request, program.gamma)
        leaves, structure = jax.tree.flatten(full)

        def one_round(weights: Any, unknown: list[jax.Array]) -> DecodeState:
            supplied = iter(unknown)
            values = [jnp.asarray(leaf) if _is_known(leaf) else next(supplied) for leaf in leaves]
            target, draft, processors = nnx.merge(decoder._graphdef, weights)
            merged = program.with_processors(processors), target, draft
            return decode_round(*merged, structure.unflatten(values))

        function = jax.jit(one_round, donate_argnums=1)
        unknown = [leaf for leaf in leaves if not _is_known(leaf)]
        executable, seconds = self._compile(f"one pass: {name}", function, weights, unknown)
        # Of a cache, half is left to a result: what it was made of passes through too.
        moved = traffic.count(module.parse(executable), self.published.cache_bytes / 2)
        return Step(
            name=name,
            traffic=moved,
            ideal_bytes=ideal_bytes,
            seconds=roofline.seconds(moved, self.published),
            compile_seconds=seconds,
        )

    def _state_alone(self, decoder: Decoder, cache: Any) -> DecodeState:
        """The state of a decoder whose cache is split as another one of its structure is."""
        state = self._state(decoder)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, cache)
        return dataclasses.replace(place(state, self.where), cache=place_like(state.cache, shardings))

    def _valid_bytes(self, model: Any, cache: Any) -> float:
        """Bytes on one device of what a cache holds when rows are as long as they can be.

        Arrays that do not grow with the capacity, such as a recurrent state, count as a whole.
        """
        program = self.programs.program
        valid = program.capacity - program.gamma - 2
        with self._on_mesh():
            longer = jax.eval_shape(lambda: model.init_cache(self.batch, 2 * program.cache_capacity))

        def of(leaf: Any, longer: Any) -> float:
            grown = [size for size, more in zip(leaf.shape, longer.shape, strict=True) if size != more]
            return device_bytes(leaf) * (valid / grown[0] if grown else 1)

        return sum(jax.tree.leaves(jax.tree.map(of, cache, longer)))

    def _compile(self, what: str, function: Any, *arguments: Any) -> tuple[Any, float]:
        self.progress(f"compiling {what}")
        begun = time.perf_counter()
        with self._on_mesh():
            executable = function.lower(*arguments).compile()
        return executable, time.perf_counter() - begun

    def _on_mesh(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.where.mesh is None else jax.set_mesh(self.where.mesh)


def _is_known(leaf: Any) -> bool:
    """Whether a leaf of a state is a value, not a shape."""
    return isinstance(leaf, np.ndarray)


def _is_split(weights: Any) -> bool:
    """Whether any of some placed shapes is split over the mesh."""
    return any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(weights))


def _weight_bytes(weights: Any) -> tuple[int, int, int]:
    """Of target, draft and processors on one device; what they share counts where it is found first."""
    sums = [0, 0, 0]
    for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]:
        sums[path[0].key] += device_bytes(leaf)
    return sums[0], sums[1], sums[2]
