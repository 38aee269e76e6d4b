"""`specjax bench`: the flags, and what is done with them."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from typing import Literal

import tyro

from specjax.bench import run as bench
from specjax.bench.figure import write_figure
from specjax.bench.peers import PEERS
from specjax.bench.report import print_report
from specjax.bench.workload import read_tasks
from specjax.decoding import DecodeConfig, Stop
from specjax.decoding.arguments import make_request
from specjax.drafts.names import check_name, is_reserved
from specjax.sampling import Sampling
from specjax.text.flags import ModelFlags, UsageError
from specjax.text.output import check_writable, stderr_console, write_outputs

_OK, _FAILED, _INTERRUPTED = 0, 1, 130
_OTHER_ARMS = (bench.PLAIN, "hand-written", *PEERS)
_ANY_VOCABULARY = 2**31 - 1  # flags are checked before a model is there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench(ModelFlags):
    """Measure how fast drafts, plain decoding and other libraries are on the same prompts.

    All arms take turns, generate the same number of tokens (nothing ends a text early), and are compared with
    plain decoding at its own fastest width. Tables go to standard error.

    The exit code is 2 if the command makes no sense, 1 after an error and 130 after Ctrl-C, which both still
    report what was measured.
    """

    jsonl: pathlib.Path | None = None
    """Take one prompt from each line: {"prompt": text}, {"messages": [...]} or {"turns": [text, ...]}, the
    first of them, with an optional "task" or "category". The default is the four prompts of the demo."""
    task: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only prompts of this task, once or more; the default is all."""
    per_task: int = 4
    """Prompts of each task, the first of the file."""

    draft: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """What guesses tokens, once or more: ngram (the default), none (plain decoding alone), or any other draft
    that generate takes. Plain decoding is always measured."""
    gammas: tuple[int, ...] = (4,)
    """Draft tokens in each round, at most; each number is measured."""
    policy: str = "fixed"
    """How many of them drafts propose, as for generate."""
    batch: tuple[int, ...] = (1,)
    """Prompts that are decoded together; each number is measured. Prompts of one batch are of one task."""
    repeats: int = 5
    """Turns: how often each arm decodes each prompt."""
    hand_written: bool = False
    """Also measure a minimal greedy loop over the same model, to see what the library costs beside it."""

    peer: tyro.conf.UseAppendAction[tuple[Literal["transformers", "llama-cpp", "openvino"], ...]] = ()
    """Also measure this library in the same turns, plainly and with its prompt lookup; once or more."""
    peer_python: pathlib.Path = pathlib.Path(sys.executable)
    """The Python that has the peers; the default is the one that runs this."""
    peer_model: str | None = None
    """What peers load, if not --model."""
    peer_gammas: tuple[int, ...] = (5,)
    """Draft tokens of the peers' prompt lookup; each number is measured."""

    json: pathlib.Path | None = None
    """Write all measurements to this file."""
    figure: pathlib.Path | None = None
    """Draw speed-ups by task, gamma and batch size into this file (.png, .svg, .pdf)."""

    def settings(self) -> bench.Settings:
        """The checked settings.

        Raises:
            ValueError, ImportError: a flag makes no sense.
        """
        for name, values, least in (
            ("gammas", self.gammas, 1),
            ("batch", self.batch, 1),
            ("peer-gammas", self.peer_gammas, 1),
            ("repeats", (self.repeats,), 1),
            ("per-task", (self.per_task,), 1),
            ("max-new-tokens", (self.max_new_tokens,), 2),
        ):
            if not values or min(values) < least or len(set(values)) < len(values):
                raise ValueError(f"--{name} is {values}; expected different integers of at least {least}")
        check_writable(self.json, figure=self.figure)
        sampling = self.sampling()
        config = DecodeConfig(
            max_new_tokens=self.max_new_tokens, gamma=max(self.gammas), rule=self.rule, policy=self.policy
        )
        make_request(1, config, _ANY_VOCABULARY, sampling, None, Stop(), ())
        plain = dataclasses.replace(sampling, seed=Sampling().seed) == Sampling()
        if not plain and (self.hand_written or self.peer):
            raise ValueError(
                f"{'--hand-written' if self.hand_written else '--peer'} decodes greedily and processes no "
                "logits; expected no flags of sampling beside it"
            )
        drafts = tuple(dict.fromkeys(self.draft or ("ngram",)))
        for draft in drafts:
            check_name(draft)
        _check_different(drafts)
        return bench.Settings(
            model=self.model,
            dtype=self.dtype,
            drafts=tuple(draft for draft in drafts if draft != "none"),
            gammas=self.gammas,
            batches=self.batch,
            max_new_tokens=self.max_new_tokens,
            repeats=self.repeats,
            rule=self.rule,
            policy=self.policy,
            sampling=sampling,
            raw=self.raw,
            hand_written=self.hand_written,
            peers=tuple(dict.fromkeys(self.peer)),
            peer_python=str(self.peer_python),
            peer_model=self.peer_model,
            peer_gammas=self.peer_gammas,
        )

    def run(self) -> int:
        """Carries the command out and returns the exit code.

        Raises:
            UsageError: it cannot be carried out.
        """
        console = stderr_console()
        try:
            settings = self.settings()
            tasks = read_tasks(self.jsonl, self.task, self.per_task)
            benchmark = bench.run(settings, tasks, console)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            raise UsageError(str(error)) from error
        measured = bool(benchmark.records)
        failures = write_outputs(
            [
                (self.json, benchmark.write_json),
                (self.figure if measured else None, functools.partial(write_figure, benchmark)),
            ]
        )
        if measured:
            print_report(benchmark, console)
        else:
            console.print("interrupted: nothing was measured, as no turn was complete")
        failures += [benchmark.error] if benchmark.error is not None else []
        for failure in failures:
            console.print(f"error: {failure}")
        if benchmark.interrupted:
            return _INTERRUPTED
        return _FAILED if failures else _OK


def _check_different(drafts: tuple[str, ...]) -> None:
    """Arms are told apart by the names that tables have for their drafts.

    Raises:
        ValueError: two drafts, or a draft and another arm, have the same.
    """
    taken: dict[str, str] = {}
    for draft in drafts:
        short = bench.short_name(draft)
        if short in taken:
            raise ValueError(
                f"--draft is {taken[short]} and {draft}, both called {short}; expected different names"
            )
        # A model's folder may have any name, such as that of a search.
        if not is_reserved(draft) and (short in _OTHER_ARMS or is_reserved(short)):
            raise ValueError(
                f"--draft is {draft}, called {short} as another arm may be; expected another name"
            )
        taken[short] = draft
