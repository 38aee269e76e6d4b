"""The command line: parse, call, print."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Literal

try:
    import rich  # noqa: F401
    import tyro
except ModuleNotFoundError as error:
    raise SystemExit(
        f"the command line needs the package {error.name!r}; install: pip install 'specjax[cli,models]'"
    ) from error

from specjax.bench.command import Bench
from specjax.certify import Effort
from specjax.certify import run as certification
from specjax.decoding import DecodeConfig, Stop
from specjax.decoding.arguments import make_request
from specjax.drafts.names import check_name
from specjax.pairs import Pair, read_pair
from specjax.plan.command import PlanCommand
from specjax.text.flags import DecodingFlags, UsageError, round_widths
from specjax.text.output import JsonOutput, TextOutput, stderr_console
from specjax.text.session import Session, Settings
from specjax.tune.command import Tune

_OK, _FAILED, _UNUSABLE, _INTERRUPTED, _BROKEN_PIPE = 0, 1, 2, 130, 141
_ANY_VOCABULARY = 2**31 - 1  # flags are checked before a model is there


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(DecodingFlags):
    """Generate text with speculative decoding.

    The prompt is an argument, a file, a JSONL file with one prompt a line, or standard input. Text goes to
    standard output as it is generated, the report to standard error.

    The exit code is 1 if a line or a comparison failed, 2 if the command makes no sense, 130 after Ctrl-C.
    """

    config: pathlib.Path | None = None
    """Take the defaults of --model, --draft, --dtype, --gamma, --verify-widths, --rule and --policy from this
    pair file (TOML, as in configs/)."""
    draft: str = "ngram"
    """What guesses tokens: ngram (from the text so far), recycling (from what the model liked before),
    early-exit:N or layers:0-9,28,29 (some of the model's own layers), a model with the same tokenizer,
    ngram+OTHER (n-grams where at least three tokens match, OTHER where not), or none."""
    on_draft_failure: Literal["plain", "fail"] = "plain"
    """If the draft cannot be used: warn and decode without, or refuse."""
    verify_widths: tuple[int, ...] | None = None
    """Numbers of tokens below gamma + 1 that a round scores where its draft is short enough. The default on
    CPUs, where each token costs time, is 2, 3, 5, ... for ngram, recycling and policies, which may propose
    little, and also 1 for adaptive ones, which may propose nothing; and none elsewhere."""

    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Text that ends the generation and is not shown."""
    system: str | None = None
    """Instructions that precede the conversation."""

    logprobs: bool = False
    """Also report the log-probability of each token."""
    compare: bool = False
    """Also decode plainly: are the tokens identical, and how much faster is speculative decoding?"""
    repeats: int = 3
    """How often each way of decoding is measured for --compare."""
    json: bool = False
    """Print one JSON object for each prompt and one for the report, instead of text."""

    @classmethod
    def of_pair(cls, pair: Pair) -> Generate:
        """The command with a pair file's values as defaults."""
        return cls(
            model=pair.target,
            draft=pair.draft if pair.speculate else "none",
            dtype=pair.dtype,
            gamma=pair.gamma,
            verify_widths=pair.verify_widths,
            rule=pair.rule,
            policy=pair.policy,
        )

    def settings(self) -> Settings:
        """The checked settings.

        Raises:
            ValueError: a value makes no sense.
        """
        if "" in self.stop:
            raise ValueError("--stop is empty; expected at least one character")
        if self.repeats < 1:
            raise ValueError(f"--repeats is {self.repeats}; expected at least 1")
        if self.compare and self.draft == "none":
            raise ValueError("--compare needs a draft; --draft is none")
        if self.raw and self.system is not None:
            raise ValueError("--system needs the chat template, which --raw turns off")
        check_name(self.draft)
        widths = self.verify_widths
        if widths is None:
            widths = round_widths((self.draft,), self.gamma, self.policy)
        config = DecodeConfig(
            max_new_tokens=self.max_new_tokens,
            gamma=self.gamma,
            verify_widths=widths,
            rule=self.rule,
            policy=self.policy,
            logprobs=self.logprobs,
        )
        sampling = self.sampling()
        make_request(1, config, _ANY_VOCABULARY, sampling, None, Stop(), ())
        return Settings(
            model=self.model,
            dtype=self.dtype,
            draft=self.draft,
            policy=self.policy,
            config=config,
            sampling=sampling,
            stop_texts=self.stop,
            system=self.system,
            raw=self.raw,
            plain_on_draft_failure=self.on_draft_failure == "plain",
            repeats=self.repeats if self.compare else 0,
        )

    def run(self) -> int:
        """Carries the command out and returns the exit code.

        Raises:
            UsageError: it cannot be carried out.
        """
        console = stderr_console()
        try:
            settings = self.settings()
            prompts, bad_lines = self.prompts()
            session = Session(settings, console)
            encoded, unsuitable = session.encode(prompts)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            raise UsageError(str(error)) from error
        output = JsonOutput() if self.json else TextOutput(console, headings=self.jsonl is not None)
        bad_lines = sorted([*bad_lines, *unsuitable], key=lambda line: line.line)
        for line in bad_lines:
            output.bad_line(line)
        report = session.run(encoded, output)
        report.bad_lines = bad_lines
        output.report(report)
        if any(generation.cancelled for generation in report.generations):
            return _INTERRUPTED
        return _OK if report.ok else _FAILED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certify(DecodingFlags):
    """Check on a pair of models, prompts and settings that speculation changes nothing.

    Decodes and samples with and without speculation, compares texts token for token where they must be equal,
    and tests laws where they are drawn. The table goes to standard error.

    The exit code is 1 if a check failed, 2 if the command makes no sense, 130 after Ctrl-C.
    """

    draft: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """What guesses tokens, once or more: ngram (the default), self (the target), perturbed (the target with
    noise in its weights), or any other draft that generate takes."""
    temperature: float = 1.0
    """Of the sampled checks, above 0. Greedy texts are checked in any case."""
    max_new_tokens: int = 64
    """Tokens of each compared text at most."""
    count: int = 4
    """Prompts that are used, the shortest first."""
    stages: bool = False
    """Check an integration step by step (short greedy, greedy, law, latency, batch, long context,
    cancellation and memory) and stop where a step fails."""

    contexts: int = 32
    """Rounds of real decoding whose laws are drawn from, for each draft."""
    draws: int = 2048
    """Draws of the acceptance rule in each of them."""
    samples: int = 24
    """Sampled texts of each prompt, with and without speculation."""
    sample_tokens: int = 3
    """Tokens of each sampled text at most; more of them also show lengths and ends."""
    json: pathlib.Path | None = None
    """Write all figures to this file."""
    figure: pathlib.Path | None = None
    """Draw margins and laws into this file (.png, .svg, .pdf)."""

    def run(self) -> int:
        """Carries the command out and returns the exit code.

        Raises:
            UsageError: it cannot be carried out.
        """
        console = stderr_console()
        try:
            if self.count < 1:
                raise ValueError(f"--count is {self.count}; expected at least 1")
            effort = Effort(
                contexts=self.contexts,
                draws=self.draws,
                samples=self.samples,
                sample_tokens=self.sample_tokens,
            )
            prompts, bad_lines = self.prompts()
            if bad_lines:
                raise ValueError(f"{self.jsonl}, line {bad_lines[0].line}: {bad_lines[0].reason}")
            drafts = self.draft or ("ngram",)
            for draft in drafts:
                check_name(draft)
            config = DecodeConfig(
                max_new_tokens=self.max_new_tokens,
                gamma=self.gamma,
                verify_widths=round_widths(drafts, self.gamma, self.policy),
                rule=self.rule,
                policy=self.policy,
            )
            certificate = certification.run(
                certification.Settings(
                    model=self.model,
                    dtype=self.dtype,
                    drafts=drafts,
                    config=config,
                    sampling=self.sampling(),
                    effort=effort,
                    stages=self.stages,
                    count=self.count,
                    raw=self.raw,
                    json=self.json,
                    figure=self.figure,
                ),
                prompts,
                console,
            )
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            raise UsageError(str(error)) from error
        return _OK if certificate.passed else _FAILED


def _with_pair(
    command: Generate | PlanCommand, path: pathlib.Path, argv: Sequence[str]
) -> Generate | PlanCommand:
    """The command in `argv` parsed again, with the defaults of a pair file: flags that were given win."""
    try:
        defaults = command.of_pair(read_pair(path))
    except ValueError as error:
        raise UsageError(str(error)) from error
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(type(command), prog=f"specjax {argv[0]}", args=argv[1:], default=defaults, config=config)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: arguments without the program's name; None: those of the process.
    """
    command: Generate | Certify | Bench | Tune | PlanCommand = tyro.extras.subcommand_cli_from_dict(
        {"generate": Generate, "certify": Certify, "bench": Bench, "tune": Tune, "plan": PlanCommand},
        prog="specjax",
        description="Exact speculative decoding for JAX.",
        args=argv,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    try:
        if isinstance(command, Generate | PlanCommand) and command.config is not None:
            command = _with_pair(command, command.config, sys.argv[1:] if argv is None else argv)
        return command.run()
    except UsageError as error:
        print(f"specjax: error: {error}", file=sys.stderr)
        return _UNUSABLE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the text has seen enough. Python would flush stdout once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
