"""Where a run writes: text or JSON on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from specjax.text.generation import Generation
from specjax.text.prompts import BadLine, Prompt
from specjax.text.report import Entry, Report, describe

_FIGURES = (".png", ".svg", ".pdf")
_REPORT_WIDTH = 120  # of a report that goes to a file


def stderr_console() -> Console:
    """A console on stderr that colours nothing and breaks no table in a file."""
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _REPORT_WIDTH
    return console


def check_writable(*paths: pathlib.Path | None, figure: pathlib.Path | None = None) -> None:
    """Finds out at once what would lose results at the end; leaves files as they are.

    Raises:
        ValueError: a file cannot be written, two of them are the same, or the figure's format is unknown.
        ImportError: nothing is installed that draws.
    """
    given = [path for path in (*paths, figure) if path is not None]
    for number, path in enumerate(given):
        if path in given[:number]:
            raise ValueError(f"{path} is to be written twice; expected a file for each output")
        _check_file(path)
    if figure is not None:
        if figure.suffix not in _FIGURES:
            raise ValueError(f"{figure} is no figure; expected {', '.join(_FIGURES)}")
        try:
            import matplotlib  # noqa: F401
        except ModuleNotFoundError as error:
            raise ImportError(
                "figures need the package 'matplotlib'; install: pip install 'specjax[plots]'"
            ) from error


def _check_file(path: pathlib.Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            # Permissions do not tell what a file system allows, nor what they mean to root.
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def write_outputs(
    outputs: Iterable[tuple[pathlib.Path | None, Callable[[pathlib.Path], object]]],
) -> list[str]:
    """Writes each file that has a path and returns what went wrong: one that fails keeps no other from it."""
    failures = []
    for path, write in outputs:
        if path is None:
            continue
        try:
            write(path)
        except Exception as error:  # also what a library raises that draws: results are worth more
            failures.append(f"{path} was not written: {in_words(error)}")
    return failures


def in_words(error: Exception) -> str:
    """What went wrong in a line or more; errors without a message are named."""
    return str(error) or type(error).__name__


@contextlib.contextmanager
def status(console: Console, message: str) -> Generator[None, None, None]:
    """Says what takes long: for as long as it takes on a terminal, as a line in a file."""
    if not console.is_terminal:
        console.print(message)
    with console.status(message):
        yield


class TextOutput:
    """Streams text to stdout, with headings where there are several prompts, and a table at the end."""

    def __init__(self, console: Console, *, headings: bool) -> None:
        self._console = console
        self._headings = headings

    def begin(self, prompt: Prompt) -> None:
        if self._headings:
            self._console.rule(prompt.name, align="left")

    def show(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self, entry: Entry) -> None:
        generation = entry.generation
        if generation.violations:
            self._console.print(f"error: {generation.violations}")
        if generation.logprobs is not None:
            self._console.print(_logprob_table(generation))
        if entry.comparison is not None:
            self._console.print(describe(entry.comparison))

    def finish_text(self, generation: Generation) -> None:
        """Ends the last line of a text."""
        if not generation.text.endswith("\n"):
            self.show("\n")

    def bad_line(self, line: BadLine) -> None:
        self._console.print(f"line {line.line}: {line.reason}")

    def report(self, report: Report) -> None:
        self._console.print(report.table())
        for note in report.notes():
            self._console.print(note)


class JsonOutput:
    """Writes one object a prompt, one for each bad line, and `{"report": ...}` at the end."""

    def begin(self, prompt: Prompt) -> None:
        pass

    def show(self, text: str) -> None:
        pass

    def finish_text(self, generation: Generation) -> None:
        pass

    def end(self, entry: Entry) -> None:
        _write_json(entry.to_json())

    def bad_line(self, line: BadLine) -> None:
        _write_json({"line": line.line, "error": line.reason})

    def report(self, report: Report) -> None:
        _write_json({"report": report.to_json()})


def _logprob_table(generation: Generation) -> Table:
    """The log-probability of each token, as drawn and under the model's own logits."""
    table = Table("token id", "logprob", "raw logprob", box=None)
    columns = (generation.token_ids, generation.logprobs or [], generation.raw_logprobs or [])
    for token, logprob, raw in zip(*columns, strict=True):
        table.add_row(f"{token}", f"{logprob:.4f}", f"{raw:.4f}")
    return table


def _write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
