"""`specjax plan`: compile, print, write."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import time
from collections.abc import Collection
from typing import Annotated, Literal

import jax
import rich
import tyro
from rich.console import Console

from specjax.pairs import Pair
from specjax.plan.abstract import abstract_decoder
from specjax.plan.compilation import largest_batch, plan
from specjax.plan.devices import describe
from specjax.plan.plan import PASSES, Plan
from specjax.plan.report import heading, notes, tables
from specjax.text.flags import UsageError
from specjax.text.output import check_writable, stderr_console, write_outputs

# Only a process that uses a TPU must have libtpu for itself; the rest it would look for on a TPU's machine.
_LIBTPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """Compile a pair for a device that need not be there: does it fit, and how fast could it be?

    Needs shapes, no weights: a directory with a config.json is enough. The tables go to standard output.

    The exit code is 1 if it does not fit or copies a cache, 2 if the command makes no sense.
    """

    config: Annotated[pathlib.Path | None, tyro.conf.Positional] = None
    """A pair file (TOML, as in configs/), whose values are the defaults of the flags."""
    model: str = ""
    """A directory with a config.json, or a .gguf file."""
    draft: str = "ngram"
    """What guesses tokens, as for generate; a model likewise."""
    device: str = ""
    """cpu, h200, or a TPU with its topology: v5e:2x2, v5e:2x4, v6e:2x4, v5p:2x2x1; the pair file's first by
    default."""
    mesh: dict[str, int] = dataclasses.field(default_factory=dict)
    """Devices along each axis, such as: model 8. Rows are split over data, weights and caches over model."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights."""
    gamma: int = 4
    """Draft tokens in each round."""
    verify_widths: tuple[int, ...] = ()
    """Numbers of tokens below gamma + 1 that a round scores where its draft is short enough."""
    rule: Literal["auto", "token", "block", "coupled"] = "auto"
    """How sampled draft tokens are accepted."""
    batch: int = 1
    """Rows."""
    prompt_width: int = 512
    """Tokens that prompts are padded to."""
    max_new_tokens: int = 128
    """Tokens to generate at most."""
    capacity: int | None = None
    """Tokens, prompt and output together, that a row can hold."""
    largest_batch: bool = False
    """Find the most rows that fit, instead of --batch."""
    memory_only: bool = False
    """Do not predict times, which takes most of the compiling."""
    json: pathlib.Path | None = None
    """Write the plan to this file."""

    @classmethod
    def of_pair(cls, pair: Pair) -> PlanCommand:
        """The command with a pair file's values as defaults."""
        return cls(
            model=pair.target,
            draft=pair.draft if pair.speculate else "none",
            device=next(iter(pair.devices), ""),
            mesh=dict(pair.mesh),
            dtype=pair.dtype,
            gamma=pair.gamma,
            verify_widths=pair.verify_widths,
            rule=pair.rule,
            batch=pair.batch,
            prompt_width=pair.prompt_width,
            max_new_tokens=pair.max_new_tokens,
            capacity=pair.capacity,
        )

    def run(self) -> int:
        """Carries the command out and returns the exit code.

        Raises:
            UsageError: it cannot be carried out.
        """
        try:
            for flag, value in (("--model", self.model), ("--device", self.device)):
                if not value:
                    raise ValueError(f"no {flag}; give it, or a pair file that names one")
            pair = Pair(
                target=self.model,
                draft=self.draft,
                dtype=self.dtype,
                gamma=self.gamma,
                verify_widths=self.verify_widths,
                rule=self.rule,
                batch=self.batch,
                prompt_width=self.prompt_width,
                max_new_tokens=self.max_new_tokens,
                capacity=self.capacity,
                mesh=self.mesh,
                devices=(self.device,),
            )
            made = run(
                pair,
                largest=self.largest_batch,
                passes=() if self.memory_only else PASSES,
                json_path=self.json,
                console=stderr_console(),
            )
        except (ValueError, OSError, ImportError) as error:
            raise UsageError(str(error)) from error
        return 1 if made.faults else 0


def run(
    pair: Pair, *, largest: bool, passes: Collection[str], json_path: pathlib.Path | None, console: Console
) -> Plan:
    """Plans a pair for its first device and prints what was found.

    Args:
        largest: for the most rows that fit, instead of `pair.batch`.
        passes: what times are predicted of.
        console: for progress.

    Raises:
        ValueError, ImportError, OSError: the pair, or the device, cannot be planned for, or the file cannot
            be written.
    """
    device = pair.devices[0]
    check_writable(json_path)
    on_cpu = describe(device).kind == "cpu"
    # Compilers for other devices run on the host; a plugin that looks for its device would only find none.
    jax.config.update("jax_platforms", "cpu")
    for name, value in _LIBTPU.items():
        os.environ.setdefault(name, value)
    decoder = abstract_decoder(pair.target, pair.draft, pair.config, dtype=pair.dtype, on_cpu=on_cpu)
    begun = time.perf_counter()

    def progress(message: str) -> None:
        console.print(f"{time.perf_counter() - begun:5.0f} s  {message} ...")

    planned = largest_batch if largest else functools.partial(plan, batch=pair.batch)
    made = planned(
        decoder, device, prompt_width=pair.prompt_width, mesh=pair.mesh, passes=passes, progress=progress
    )
    failures = write_outputs([(json_path, lambda path: _write_json(made, path))])
    rich.print(heading(made))
    for table in tables(made):
        rich.print(table)
    for note in notes(made):
        rich.print(note)
    if failures:
        raise OSError("; ".join(failures))
    return made


def _write_json(plan: Plan, path: pathlib.Path) -> None:
    path.write_text(json.dumps(plan.to_json(), indent=1) + "\n", encoding="utf-8")
