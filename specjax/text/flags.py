"""Flags that several commands share."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import jax
import tyro

from specjax.decoding import power_widths
from specjax.drafts.names import looks_at_text_alone
from specjax.policies import policy_named
from specjax.sampling import Sampling
from specjax.text.prompts import BadLine, Prompt, read_jsonl

_SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "min_new_tokens", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size"),
)


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model, and how its tokens are drawn."""

    raw: bool = False
    """Continue the prompt as it is, without the chat template."""

    model: str = "smollm2-135m-instruct"
    """A checkpoint directory, a .gguf file, a hub id, or the default model, which is downloaded once."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights; auto takes the faster one."""
    rule: Literal["auto", "token", "block", "coupled"] = "auto"
    """How sampled draft tokens are accepted; with coupled, text does not depend on the draft (README)."""

    max_new_tokens: int = 128
    """Tokens to generate at most."""
    min_new_tokens: int = 0
    """Tokens before the text may end."""
    temperature: float = 0.0
    """0 takes the likeliest token; 1 samples from the model's own distribution."""
    top_k: int = 0
    """Sample from the k likeliest tokens; 0 from all."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that together have this probability."""
    min_p: float = 0.0
    """Sample from tokens at least this fraction as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Above 1: tokens that occurred in prompt or text become less likely."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that occurred in the text."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that a token occurred in the text."""
    no_repeat_ngram_size: int = 0
    """No so many tokens in a row occur twice in prompt and text; 0 allows it."""
    seed: int = 0
    """Equal seeds give equal samples."""

    def sampling(self) -> Sampling:
        return Sampling(**{name: getattr(self, name) for name in _SAMPLING})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptFlags(ModelFlags):
    """A model, and prompts from one of several sources."""

    prompt: Annotated[str, tyro.conf.Positional] = ""
    """The prompt."""
    file: pathlib.Path | None = None
    """Take the contents of this file as the prompt."""
    jsonl: pathlib.Path | None = None
    """Take one prompt from each line: {"prompt": text}, {"messages": [...]} or {"turns": [text, ...]}, the
    first of them; "id" is optional."""

    def prompts(self) -> tuple[list[Prompt], list[BadLine]]:
        """The prompts, from wherever they were given, and lines that hold none.

        Raises:
            ValueError: no prompt, or more than one source.
            OSError: a file cannot be read.
        """
        given = [name for name in ("prompt", "file", "jsonl") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"prompts from {' and '.join(given)}; expected one of them")
        if self.jsonl:
            return read_jsonl(self.jsonl)
        if self.file:
            text = self.file.read_text(encoding="utf-8")
        elif self.prompt or sys.stdin.isatty():
            text = self.prompt
        else:
            text = sys.stdin.read()
        if not text.strip():
            raise ValueError(
                "no prompt; give it as an argument, with --file or --jsonl, or on standard input"
            )
        return [Prompt(content=text)], []


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingFlags(PromptFlags):
    """A model, how it decodes, and prompts from one of several sources."""

    gamma: int = 4
    """Draft tokens in each round, at most."""
    policy: str = "fixed"
    """How many of them are proposed: fixed (all), confidence:0.4 or entropy:1 (while the draft is that sure),
    adaptive (what has paid so far, in each row), or batch-adaptive (for all rows together)."""


def round_widths(drafts: Sequence[str], gamma: int, policy: str = "fixed") -> tuple[int, ...]:
    """Widths of rounds that pay: searches often propose little, and a CPU pays for every token scored.

    Raises:
        ValueError: there is no such policy.
    """
    if policy_named(policy).may_sit_out and gamma:
        widths = (1, *power_widths(gamma))
    elif policy != "fixed" or all(map(looks_at_text_alone, drafts)):
        widths = power_widths(gamma)
    else:
        widths = ()
    return widths if jax.default_backend() == "cpu" else ()
