"""A run of `specjax generate`: load, compile, decode one prompt after another, report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from specjax.decoding import DecodeConfig, Decoder, Stop
from specjax.drafts import Draft, NoDraft
from specjax.drafts.names import draft_named
from specjax.models.load import LanguageModel, load
from specjax.sampling import Sampling
from specjax.text.comparison import Ways, compare
from specjax.text.generation import Runner, padded_width
from specjax.text.output import JsonOutput, TextOutput, status
from specjax.text.prompts import BadLine, Prompt, encode
from specjax.text.report import Entry, Report
from specjax.verify import RULES


class DraftError(RuntimeError):
    """The draft that was asked for cannot be used with this model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What all prompts of a run share.

    Attributes:
        draft: as `draft_named` takes it.
        policy: as in `config`, by its name.
        plain_on_draft_failure: decode plainly where the draft cannot be used, instead of refusing to.
        repeats: how often each way of decoding is measured for a comparison; 0 compares nothing.
    """

    model: str
    dtype: str
    draft: str
    policy: str
    config: DecodeConfig
    sampling: Sampling
    stop_texts: tuple[str, ...] = ()
    system: str | None = None
    raw: bool = False
    plain_on_draft_failure: bool = True
    repeats: int = 0


class Session:
    """The loaded models of a run.

    Raises:
        ValueError, RuntimeError, ImportError: the model cannot be loaded.
        DraftError: the draft cannot be used, and plain decoding is not wanted instead.
    """

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console
        with status(console, f"loading {settings.model} ..."):
            self._lm = load(settings.model, dtype=settings.dtype)
        self._stop_ids = _stop_ids(self._lm, settings.stop_texts)
        self._config = _with_stop_slots(settings.config, self._stop_ids)
        self._draft, self._draft_failure = self._load_draft()

    def encode(self, prompts: Sequence[Prompt]) -> tuple[list[tuple[Prompt, list[int]]], list[BadLine]]:
        """The token ids of the prompts, and the lines of those that do not suit the model.

        Raises:
            ValueError: a prompt that is no line of a file does not suit the model.
        """
        settings, limit = self._settings, self._lm.model.context_length
        longest = None if limit is None else limit - settings.config.max_new_tokens
        encoded, bad_lines = [], []
        for prompt in prompts:
            try:
                ids = encode(self._lm, prompt, raw=settings.raw, system=settings.system, longest=longest)
            except ValueError as error:
                if prompt.line is None:
                    raise
                bad_lines.append(BadLine(prompt.line, str(error)))
            else:
                encoded.append((prompt, ids))
        return encoded, bad_lines

    def run(self, encoded: Sequence[tuple[Prompt, list[int]]], output: TextOutput | JsonOutput) -> Report:
        """Decodes all prompts; Ctrl-C ends the run early, with a report on what was done."""
        report = self._report()
        if not encoded:
            return report
        runner = self._runner(self._draft, padded_width(len(ids) for _, ids in encoded))
        ways = self._ways(runner)
        used = [runner] if ways is None else [runner, ways.plain_equal_width, ways.plain]
        report.compile_seconds = self._warm_up(used)
        for prompt, ids in encoded:
            entry = self._decode(prompt, ids, runner, ways, output)
            report.entries.append(entry)
            if entry.generation.cancelled:
                break
        return report

    def _decode(
        self,
        prompt: Prompt,
        ids: list[int],
        runner: Runner,
        ways: Ways | None,
        output: TextOutput | JsonOutput,
    ) -> Entry:
        output.begin(prompt)
        generation = runner.generate(ids, output.show)
        output.finish_text(generation)
        entry = Entry(prompt=prompt, generation=generation)
        if ways is not None and not (generation.cancelled or generation.failed):
            with status(self._console, "comparing with plain decoding ..."):
                comparison = compare(ways, ids, self._settings.repeats)
            entry = dataclasses.replace(entry, comparison=comparison)
        output.end(entry)
        return entry

    def _load_draft(self) -> tuple[Draft, str | None]:
        """The draft and None, or no draft and what was wrong with the one that was asked for."""
        settings = self._settings

        def load_model(name: str) -> Any:
            with status(self._console, f"loading the draft {name} ..."):
                return load(name, dtype=settings.dtype).model

        try:
            draft = draft_named(settings.draft, load_model)
            Decoder(self._lm.model, draft, self._config)  # compares vocabularies, or counts layers
        except (ValueError, RuntimeError, ImportError, OSError) as error:
            if not settings.plain_on_draft_failure:
                raise DraftError(f"cannot use the draft {settings.draft}: {error}") from error
            self._console.print(f"warning: decoding plainly; cannot use the draft {settings.draft}: {error}")
            return NoDraft(), str(error)
        return draft, None

    def _runner(self, draft: Draft, prompt_width: int, *, one_width: bool = False) -> Runner:
        config = dataclasses.replace(self._config, verify_widths=()) if one_width else self._config
        return Runner(
            decoder=Decoder(self._lm.model, draft, config),
            decode=self._lm.decode,
            prompt_width=prompt_width,
            sampling=self._settings.sampling,
            stop=Stop(sequences=self._stop_ids),
            stop_texts=self._settings.stop_texts,
        )

    def _ways(self, speculative: Runner) -> Ways | None:
        """What a comparison needs; None if none is wanted."""
        if not self._settings.repeats or isinstance(self._draft, NoDraft):
            return None
        runner = functools.partial(self._runner, prompt_width=speculative.prompt_width)
        greedy = bool(np.all(np.asarray(self._settings.sampling.temperature) == 0))
        return Ways(
            same_tokens=greedy or RULES[self._config.rule].shares_noise,
            speculative=speculative,
            plain_equal_width=runner(NoDraft(width=self._config.gamma), one_width=True),
            plain=runner(NoDraft()),
            speculative_one_width=runner(self._draft, one_width=True) if self._config.verify_widths else None,
        )

    def _warm_up(self, runners: list[Runner]) -> float:
        seconds = 0.0
        for number, runner in enumerate(runners, start=1):
            message = f"compiling, prompts of {runner.prompt_width} tokens ({number} of {len(runners)}) ..."
            with status(self._console, message):
                seconds += runner.warm_up()
        return seconds

    def _report(self) -> Report:
        settings = self._settings
        plain = isinstance(self._draft, NoDraft)
        return Report(
            model=settings.model,
            dtype=str(self._lm.model.embedding.dtype),
            draft="none" if plain else settings.draft,
            gamma=0 if plain else self._config.gamma,
            rule=self._config.rule,
            policy=settings.policy,
            verify_widths=() if plain else self._config.verify_widths,
            draft_failure=self._draft_failure,
        )


def _stop_ids(lm: LanguageModel, texts: Sequence[str]) -> list[list[int]]:
    return [list(lm.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def _with_stop_slots(config: DecodeConfig, sequences: Sequence[Sequence[int]]) -> DecodeConfig:
    """The configuration with room for some stop sequences."""
    longest = max(map(len, sequences), default=1)
    return dataclasses.replace(config, max_stop=len(sequences), max_stop_len=longest)
