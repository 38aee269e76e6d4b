"""A run of `specjax certify`: load, certify, report."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from specjax.certify.certificate import Certificate
from specjax.certify.figure import write_figure
from specjax.certify.pair import self_draft
from specjax.certify.stages import Effort, certify
from specjax.decoding import DecodeConfig
from specjax.drafts import Draft
from specjax.drafts.names import draft_named
from specjax.models.load import LanguageModel, load
from specjax.sampling import Sampling
from specjax.testing import perturbed
from specjax.text.output import check_writable, status, write_outputs
from specjax.text.prompts import Prompt, encode

_NOISE = 0.05  # of the draft "perturbed": mostly right on the models it was tried on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is certified, and where the results go.

    Attributes:
        drafts: `"self"` (the target), `"perturbed"` (the target with noise in its weights), or whatever
            `draft_named` takes.
        count: prompts that are used, the shortest ones first.
    """

    model: str
    dtype: str
    drafts: tuple[str, ...]
    config: DecodeConfig
    sampling: Sampling
    effort: Effort
    stages: bool
    count: int
    raw: bool = False
    json: pathlib.Path | None = None
    figure: pathlib.Path | None = None


def run(settings: Settings, prompts: Sequence[Prompt], console: Console) -> Certificate:
    """Certifies, prints the table and writes the files.

    Raises:
        ValueError, RuntimeError, ImportError, OSError: a model cannot be loaded, or nothing can be certified
            with these settings, or a file cannot be written.
    """
    check_writable(settings.json, figure=settings.figure)
    with status(console, f"loading {settings.model} ..."):
        lm = load(settings.model, dtype=settings.dtype)
    drafts = {name: _draft(name, lm, settings.dtype, console) for name in settings.drafts}
    start = time.perf_counter()

    def progress(message: str) -> None:
        console.print(f"{time.perf_counter() - start:5.0f} s  {message}")

    certificate = certify(
        lm.model,
        _token_ids(lm, prompts, settings),
        drafts,
        config=settings.config,
        sampling=settings.sampling,
        effort=settings.effort,
        stages=settings.stages,
        progress=progress,
    )
    failures = write_outputs(
        [
            (settings.json, certificate.write_json),
            (settings.figure, functools.partial(write_figure, certificate)),
        ]
    )
    console.print(certificate.table())
    seconds = time.perf_counter() - start
    verdict = "certified" if certificate.passed else f"FAILED: {len(certificate.failures)} checks"
    untested = f", {len(certificate.untested)} of them not tested" if certificate.untested else ""
    console.print(f"{verdict}; {len(certificate.checks)} checks{untested}, in {seconds:.0f} s")
    if failures:
        raise OSError("; ".join(failures))
    return certificate


def _draft(name: str, lm: LanguageModel, dtype: str, console: Console) -> Draft:
    if name == "none":
        raise ValueError("--draft is none; expected a draft, whose effect on the text can be checked")

    def load_model(name: str) -> Any:
        if name == "self":
            return self_draft(lm.model).module
        if name == "perturbed":
            return perturbed(lm.model, _NOISE)
        with status(console, f"loading the draft {name} ..."):
            return load(name, dtype=dtype).model

    return draft_named(name, load_model)


def _token_ids(lm: LanguageModel, prompts: Sequence[Prompt], settings: Settings) -> list[list[int]]:
    longest = lm.model.context_length and lm.model.context_length - settings.config.max_new_tokens
    encoded = [encode(lm, prompt, raw=settings.raw, system=None, longest=longest) for prompt in prompts]
    # One batch is padded to its longest prompt.
    return sorted(encoded, key=len)[: settings.count]
