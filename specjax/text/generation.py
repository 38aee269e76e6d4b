"""One prompt at a time through a `Decoder`: streamed as text, or timed to the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from specjax.decoding import Decoder, DecodeState, FinishReason, GenerateResult, Stop
from specjax.decoding.invariants import describe
from specjax.sampling import Sampling
from specjax.text.streaming import TextStream

_WIDTH_STEP = 64
_UPDATE_SECONDS = 0.05  # twenty updates a second look smooth, and looking costs fast devices little
_WARM_UP_TOKENS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What came of one prompt.

    Attributes:
        text: without stop text and special tokens.
        token_ids: all committed tokens, EOS included, up to the token that completed a stop text.
        finish_reason: a `FinishReason` in lower case.
        first_token_seconds: from the call to the first tokens of the first round; None if there were none.
        prefill_seconds, decode_seconds: the prompt, and all rounds. Compiling is in neither if the runner was
            warmed up, showing text never is.
        emitted, rounds: tokens of all rounds that ran; a stop text may be found some tokens after its end.
        drafted_at, accepted_at: live draft tokens at each position of the draft, and accepted ones.
        draft_failures: rounds in which the draft's logits were not finite.
        logprobs, raw_logprobs: of `token_ids`, if the decoder records them.
        violations: a line for each broken invariant; empty unless the library or the model is at fault.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    first_token_seconds: float | None
    prefill_seconds: float
    decode_seconds: float
    emitted: int = 0
    rounds: int = 0
    drafted_at: list[int] = dataclasses.field(default_factory=list)
    accepted_at: list[int] = dataclasses.field(default_factory=list)
    draft_failures: int = 0
    logprobs: list[float] | None = None
    raw_logprobs: list[float] | None = None
    violations: str = ""

    @property
    def failed(self) -> bool:
        return self.finish_reason == "error" or bool(self.violations)

    @property
    def cancelled(self) -> bool:
        return self.finish_reason == "cancelled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runner:
    """A decoder with everything that the prompts of one run share.

    Attributes:
        decode: the text of a list of ids.
        prompt_width: tokens that prompts are padded to, so that all of them use the same programs.
        stop: what ends a row on the device.
        stop_texts: looked for in the text as well: in context a text may be other tokens than alone.
    """

    decoder: Decoder
    decode: Callable[[Sequence[int]], str]
    prompt_width: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stop: Stop = dataclasses.field(default_factory=Stop)
    stop_texts: tuple[str, ...] = ()

    def warm_up(self) -> float:
        """Compiles what `generate` and `measure` use by a few rounds on a dummy prompt; returns seconds.

        `Decoder.compile` would also compile the program of `Decoder.generate`, which is not used here.
        """
        begun = time.perf_counter()
        few = min(_WARM_UP_TOKENS, self.decoder.config.max_new_tokens)
        short = dataclasses.replace(self, stop=dataclasses.replace(self.stop, max_new_tokens=few))
        short.measure([0])
        return time.perf_counter() - begun

    def generate(self, ids: Sequence[int], show: Callable[[str], object] = lambda text: None) -> Generation:
        """Generates and hands text to `show` as rounds commit it.

        Ctrl-C ends the generation, not the program: what was committed is returned, as `cancelled`.
        """
        record = _Record(TextStream(self.decode, self.stop_texts), show)
        try:
            state = self._start(ids)
            record.prefilled()
            for out, seconds in self._updates(state):
                record.add(out, seconds)
                if record.stream.stopped:
                    break
        except KeyboardInterrupt:
            record.cancelled = True
        return record.generation(len(ids))

    def measure(self, ids: Sequence[int]) -> tuple[list[int], float]:
        """All tokens of a generation without streaming, and the seconds of its rounds."""
        state = self._start(ids)
        begun = time.perf_counter()
        out = self._fetch(self.decoder.run_rounds(state))
        seconds = time.perf_counter() - begun
        return _token_ids(out), seconds

    def _start(self, ids: Sequence[int]) -> DecodeState:
        prompts = np.zeros((1, self.prompt_width), np.int32)
        prompts[0, : len(ids)] = ids
        lengths = np.array([len(ids)], np.int32)
        return jax.block_until_ready(
            self.decoder.start(prompts, lengths, sampling=self.sampling, stop=self.stop)
        )

    def _updates(self, state: DecodeState) -> Iterator[tuple[GenerateResult, float]]:
        """What was generated so far, on the host, and the seconds since the update before.

        The first comes after one round, the others at a steady pace, which on fast devices is several rounds.
        """
        rounds = 1
        while True:
            begun = time.perf_counter()
            state = self.decoder.run_rounds(state, rounds)
            out = self._fetch(state)
            seconds = time.perf_counter() - begun
            yield out, seconds
            if out.finish_reasons[0] != FinishReason.RUNNING:
                return
            rounds = max(1, int(rounds * _UPDATE_SECONDS / seconds))

    def _fetch(self, state: DecodeState) -> GenerateResult:
        return jax.device_get(self.decoder.result(state))


class _Record:
    """A generation in the making."""

    def __init__(self, stream: TextStream, show: Callable[[str], object]) -> None:
        self.stream = stream
        self.cancelled = False
        self._show = show
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._out: GenerateResult | None = None
        self._begun = time.perf_counter()
        self._prefill_seconds = 0.0
        self._decode_seconds = 0.0
        self._first_token_seconds: float | None = None

    def prefilled(self) -> None:
        self._prefill_seconds = time.perf_counter() - self._begun

    def add(self, out: GenerateResult, seconds: float) -> None:
        """Takes in the new tokens of `out`, up to a stop text."""
        self._out = out
        self._decode_seconds += seconds
        new = _token_ids(out)[len(self._token_ids) :]
        if new and self._first_token_seconds is None:
            self._first_token_seconds = time.perf_counter() - self._begun
        for token in new:
            self._token_ids.append(token)
            self._add_text(self.stream.push(token))
            if self.stream.stopped:
                return

    def generation(self, prompt_tokens: int) -> Generation:
        """The record, closed: text that was held back is shown."""
        self._add_text(self.stream.finish())
        return Generation(
            text="".join(self._pieces),
            token_ids=self._token_ids,
            finish_reason=self._finish_reason(),
            prompt_tokens=prompt_tokens,
            first_token_seconds=self._first_token_seconds,
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            **({} if self._out is None else _row(self._out, len(self._token_ids))),
        )

    def _add_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._show(text)

    def _finish_reason(self) -> str:
        if self.stream.stopped:
            return "stop"
        if self.cancelled or self._out is None:
            return "cancelled"
        return FinishReason(int(self._out.finish_reasons[0])).name.lower()


def padded_width(lengths: Iterable[int]) -> int:
    """The longest of some prompts, rounded up so that other prompts are likely to find the same programs."""
    return -(-max(lengths) // _WIDTH_STEP) * _WIDTH_STEP


def _token_ids(out: GenerateResult) -> list[int]:
    return out.tokens[0, : out.lengths[0]].tolist()


def _row(out: GenerateResult, count: int) -> dict[str, Any]:
    """The fields of a `Generation` of `count` tokens that a result holds."""
    stats = out.stats
    return {
        "emitted": int(stats.emitted[0]),
        "rounds": int(stats.rounds[0]),
        "drafted_at": stats.drafted_at[0].tolist(),
        "accepted_at": stats.accepted_at[0].tolist(),
        "draft_failures": int(stats.draft_failures[0]),
        "logprobs": None if out.logprobs is None else out.logprobs[0, :count].tolist(),
        "raw_logprobs": None if out.raw_logprobs is None else out.raw_logprobs[0, :count].tolist(),
        "violations": describe(out.violations),
    }
