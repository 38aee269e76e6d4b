"""What is compared: the library's decoder with and without drafts, and a loop written by hand."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal, Protocol

import jax
import numpy as np

from specjax.bench.handwritten import HandWritten
from specjax.bench.workload import Batch
from specjax.decoding import Decoder, DecodeState, Stop
from specjax.sampling import Sampling

_PROPOSALS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
    """What an arm is.

    Attributes:
        name: unique among the arms of a batch size.
        kind: "plain" scores `gamma` + 1 tokens a round and emits one, "draft" is speculative decoding by this
            library, "hand-written" a loop of its own, "peer" another library.
        batch: rows decoded together.
        draft: what drafts; None where nothing does.
        gamma: draft tokens a round.
        verify_widths: of `DecodeConfig`.
        reference: the arm whose greedy text this one's is compared with; None for no comparison.
    """

    name: str
    kind: Literal["plain", "draft", "hand-written", "peer"]
    batch: int
    draft: str | None = None
    gamma: int = 0
    verify_widths: tuple[int, ...] = ()
    reference: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One generation of a batch.

    Attributes:
        tokens: of each row.
        total_seconds: from the call to the last token.
        first_token_seconds: from the call to the end of the first round; None where it is unknown.
        decode_seconds: of all rounds, without the prefill; for peers from the first token on, of which
            `decoded` tokens a row are left. None where it is unknown.
        rounds: of the batch: those of the row that needs most. None for peers.
        row_rounds: of all rows together.
        drafted_at, accepted_at: draft tokens at each position, of all rows together.
    """

    tokens: list[list[int]]
    total_seconds: float
    first_token_seconds: float | None
    decode_seconds: float | None
    decoded: int
    rounds: int | None = None
    row_rounds: int = 0
    drafted_at: list[int] = dataclasses.field(default_factory=list)
    accepted_at: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What is true of an arm whatever it decodes; None where it does not apply or is unknown.

    Attributes:
        warmup_seconds: of the first run, which compiles, or loads what a peer needs.
        cache_bytes: caches of target and draft.
        loop_bytes: what the compiled loop needs while it runs: arguments (weights and state), outputs that do
            not share memory with them, and temporaries.
        propose_seconds: one proposal on its own, measured where `verify_widths` hide what it costs.
    """

    warmup_seconds: float
    cache_bytes: int | None = None
    loop_bytes: int | None = None
    propose_seconds: float | None = None


class BenchArm(Protocol):
    """Something that decodes batches."""

    @property
    def label(self) -> Label:
        """What it is."""
        ...

    def run(self, batch: Batch, new_tokens: int) -> Outcome:
        """Decodes `new_tokens` tokens of every row, whatever they are, and returns when they are there."""
        ...

    def warm_up(self, batch: Batch) -> Facts:
        """Compiles, and finds out what does not depend on the text."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderArm:
    """A `Decoder`: plain or speculative."""

    label: Label
    decoder: Decoder
    sampling: Sampling

    def run(self, batch: Batch, new_tokens: int) -> Outcome:
        begun = time.perf_counter()
        state = self._start(batch, new_tokens)
        prefilled = time.perf_counter()
        state = jax.block_until_ready(self.decoder.run_rounds(state, 1))
        first = time.perf_counter()
        state = jax.block_until_ready(self.decoder.run_rounds(state))
        ended = time.perf_counter()
        out = jax.device_get(self.decoder.result(state))
        return Outcome(
            tokens=[row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)],
            total_seconds=ended - begun,
            first_token_seconds=first - begun,
            decode_seconds=ended - prefilled,
            decoded=new_tokens,
            rounds=int(out.stats.rounds.max()),
            row_rounds=int(out.stats.rounds.sum()),
            drafted_at=out.stats.drafted_at.sum(axis=0).tolist(),
            accepted_at=out.stats.accepted_at.sum(axis=0).tolist(),
        )

    def warm_up(self, batch: Batch) -> Facts:
        begun = time.perf_counter()
        self.run(batch, min(4, self.decoder.config.max_new_tokens))
        seconds = time.perf_counter() - begun
        state = self._start(batch, 1)
        return Facts(
            warmup_seconds=seconds,
            cache_bytes=_bytes(state.cache) + _bytes(state.draft),
            loop_bytes=_needed_bytes(self.decoder.lower_rounds(state).compile()),
            propose_seconds=self._propose_seconds(state) if self.label.verify_widths else None,
        )

    def _start(self, batch: Batch, new_tokens: int) -> DecodeState:
        # No EOS ids: every arm generates the same number of tokens.
        stop = Stop(eos_ids=[], max_new_tokens=new_tokens)
        state = self.decoder.start(batch.prompts, batch.lengths, sampling=self.sampling, stop=stop)
        return jax.block_until_ready(state)

    def _propose_seconds(self, state: DecodeState) -> float:
        seconds = []
        for _ in range(_PROPOSALS + 1):
            begun = time.perf_counter()
            jax.block_until_ready(self.decoder.propose(state))
            seconds.append(time.perf_counter() - begun)
        return float(np.median(seconds[1:]))  # the first one compiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandWrittenArm:
    """The loop written by hand, timed as `DecoderArm` is."""

    label: Label
    program: HandWritten

    def run(self, batch: Batch, new_tokens: int) -> Outcome:
        begun = time.perf_counter()
        state = jax.block_until_ready(self.program.prefill(batch.prompts, batch.lengths))
        prefilled = time.perf_counter()
        state = jax.block_until_ready(self.program.run(state, np.int32(1)))
        first = time.perf_counter()
        state = jax.block_until_ready(self.program.run(state, np.int32(new_tokens)))
        ended = time.perf_counter()
        return Outcome(
            tokens=np.asarray(state[-1])[:, :new_tokens].tolist(),
            total_seconds=ended - begun,
            first_token_seconds=first - begun,
            decode_seconds=ended - prefilled,
            decoded=new_tokens,
            rounds=new_tokens,
            row_rounds=new_tokens * len(batch.lengths),
        )

    def warm_up(self, batch: Batch) -> Facts:
        begun = time.perf_counter()
        self.run(batch, 1)
        seconds = time.perf_counter() - begun
        cache = self.program.prefill(batch.prompts, batch.lengths)[3]
        return Facts(warmup_seconds=seconds, cache_bytes=_bytes(cache))


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _needed_bytes(compiled: jax.stages.Compiled) -> int | None:
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
