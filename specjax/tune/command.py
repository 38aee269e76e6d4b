"""`specjax tune`: load, tune, report, recommend."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console

from specjax.decoding import DecodeConfig, Stop
from specjax.decoding.arguments import make_request
from specjax.drafts import Draft
from specjax.drafts.names import check_name, draft_named
from specjax.models.load import LanguageModel, load
from specjax.pairs import Pair, write_pair
from specjax.text.flags import PromptFlags, UsageError, round_widths
from specjax.text.generation import padded_width
from specjax.text.output import check_writable, status, stderr_console, write_outputs
from specjax.text.prompts import Prompt, encode
from specjax.tune.figure import write_figure
from specjax.tune.setting import Setting
from specjax.tune.tuner import Effort, tune
from specjax.tune.tuning import Tuning

_ANY_VOCABULARY = 2**31 - 1  # flags are checked before a model is there
_OK, _FAILED, _INTERRUPTED = 0, 1, 130


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune(PromptFlags):
    """Find out whether speculation pays on this device, and with which setting.

    Times the steps of target and draft, records what is accepted on your prompts, predicts from both how much
    faster each setting is than plain decoding, measures that, too, and recommends a setting, or none. Decode
    time only, without the prompts; end-of-text is ignored. The tables go to standard error.

    The exit code is 2 if the command makes no sense, 1 after an error and 130 after Ctrl-C, which both still
    report what was found.
    """

    draft: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """What guesses tokens, once or more: ngram (the default), or any other draft that generate takes."""
    gammas: tuple[int, ...] = (2, 4, 8)
    """Draft tokens in each round that are tried."""
    batch: tuple[int, ...] = (1,)
    """Rows that decode together that are tried."""
    one_width: bool = False
    """All rounds score gamma + 1 tokens. The default on CPUs are several widths for ngram, as in generate."""
    max_new_tokens: int = 64
    """Tokens of each text."""
    count: int = 4
    """Prompts that are used, the first ones."""
    repeats: int = 5
    """Turns in which every setting decodes all prompts; 0 predicts only."""
    quick: bool = False
    """A rough answer: one prompt, 32 tokens, 2 turns, too few to be sure, short timings."""

    out: pathlib.Path | None = None
    """Write the fastest setting to this pair file (.toml), for `specjax generate --config`; of several batch
    sizes each to its own file. Unless it was measured that it surely pays, the file says not to speculate."""
    json: pathlib.Path | None = None
    """Write all figures to this file."""
    figure: pathlib.Path | None = None
    """Draw predictions against measurements into this file (.png, .svg, .pdf)."""

    def run(self) -> int:
        """Carries the command out and returns the exit code.

        Raises:
            UsageError: it cannot be carried out.
        """
        console = stderr_console()
        try:
            self._check()
            prompts, bad_lines = self.prompts()
            if bad_lines:
                raise ValueError(f"{self.jsonl}, line {bad_lines[0].line}: {bad_lines[0].reason}")
            tuning = self._tune(prompts, console)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            raise UsageError(str(error)) from error
        failures = self._write(tuning)
        for table in tuning.tables():
            console.print(table)
        for note in tuning.notes():
            console.print(note)
        failures += [tuning.error] if tuning.error is not None else []
        for failure in failures:
            console.print(f"error: {failure}")
        if tuning.interrupted:
            return _INTERRUPTED
        return _FAILED if failures else _OK

    @property
    def _config(self) -> DecodeConfig:
        new_tokens = min(self.max_new_tokens, 32) if self.quick else self.max_new_tokens
        return DecodeConfig(max_new_tokens=new_tokens, gamma=max(self.gammas, default=0), rule=self.rule)

    @property
    def _settings(self) -> list[Setting]:
        return [
            Setting(
                draft=draft,
                gamma=gamma,
                verify_widths=() if self.one_width else round_widths((draft,), gamma),
                batch=batch,
            )
            for batch, draft, gamma in itertools.product(self.batch, self.draft or ("ngram",), self.gammas)
        ]

    def _check(self) -> None:
        """Finds what makes no sense before anything is loaded."""
        for name in ("gammas", "batch"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) != len(values):
                raise ValueError(f"--{name} is {values}; expected different numbers of at least 1")
        for name, least in (("count", 1), ("repeats", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is {getattr(self, name)}; expected at least {least}")
        if "none" in self.draft or len(set(self.draft)) != len(self.draft):
            raise ValueError(f"--draft is {self.draft}; expected different drafts, without none")
        for draft in self.draft:
            check_name(draft)
        make_request(1, self._config, _ANY_VOCABULARY, self.sampling(), None, Stop(), ())
        if self.out is not None and self.out.suffix != ".toml":
            raise ValueError(f"--out is {self.out}; expected a .toml file")
        check_writable(self.json, *map(self._out, self.batch), figure=self.figure)

    def _out(self, batch: int) -> pathlib.Path | None:
        """The pair file of a batch size."""
        if self.out is None or len(self.batch) == 1:
            return self.out
        return self.out.with_stem(f"{self.out.stem}-batch{batch}")

    def _tune(self, prompts: Sequence[Prompt], console: Console) -> Tuning:
        with status(console, f"loading {self.model} ..."):
            lm = load(self.model, dtype=self.dtype)
        drafts = {name: self._draft(name, lm, console) for name in self.draft or ("ngram",)}
        config = self._config
        longest = lm.model.context_length and lm.model.context_length - config.max_new_tokens
        used = prompts[: 1 if self.quick else self.count]
        encoded = [encode(lm, prompt, raw=self.raw, system=None, longest=longest) for prompt in used]
        start = time.perf_counter()

        def progress(message: str) -> None:
            console.print(f"{time.perf_counter() - start:5.0f} s  {message}")

        tuning = tune(
            lm.model,
            encoded,
            drafts,
            self._settings,
            prompt_width=padded_width(map(len, encoded)),
            config=config,
            sampling=self.sampling(),
            effort=self._effort,
            progress=progress,
        )
        subject = {"model": self.model, "dtype": str(lm.model.embedding.dtype), **tuning.subject}
        return dataclasses.replace(tuning, subject=subject)

    @property
    def _effort(self) -> Effort:
        if self.quick:
            return Effort(repeats=min(self.repeats, 2), component_repeats=3, component_seconds=0.1)
        return Effort(repeats=self.repeats)

    def _draft(self, name: str, lm: LanguageModel, console: Console) -> Draft:
        def load_model(name: str) -> Any:
            if name == self.model:
                return lm.model
            with status(console, f"loading the draft {name} ..."):
                return load(name, dtype=self.dtype).model

        return draft_named(name, load_model)

    def _write(self, tuning: Tuning) -> list[str]:
        """Writes all files and returns what went wrong."""

        def write(batch: int, path: pathlib.Path) -> None:
            comment = f"Written by specjax tune on {tuning.environment['device']}.\n{tuning.advice(batch)}"
            write_pair(self._pair(batch, tuning), path, comment=comment)

        return write_outputs(
            [
                (self.json, tuning.write_json),
                *((self._out(batch), functools.partial(write, batch)) for batch in tuning.batches),
                (self.figure if tuning.outcomes else None, functools.partial(write_figure, tuning)),
            ]
        )

    def _pair(self, batch: int, tuning: Tuning) -> Pair:
        """The setting that surely pays, or the fastest one with the word not to use it."""
        best = tuning.best(batch)
        setting = (best or tuning.fastest(batch)).setting
        return Pair(
            target=self.model,
            draft=setting.draft,
            dtype=tuning.subject["dtype"],
            gamma=setting.gamma,
            verify_widths=setting.verify_widths,
            rule=self.rule,
            batch=batch,
            prompt_width=tuning.subject["prompt_width"],
            max_new_tokens=self.max_new_tokens,
            speculate=best is not None,
        )
