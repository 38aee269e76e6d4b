"""Prompts: where they come from and how they become token ids."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from specjax.models.load import LanguageModel, Message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """One request.

    Attributes:
        content: a text, or a conversation as `{"role": ..., "content": ...}` objects.
        name: how reports call it.
        line: where in a file it stands, from 1; None without one.
        task: what kind of request it is, where a file says so.
    """

    content: str | Sequence[Message]
    name: str = "prompt"
    line: int | None = None
    task: str | None = None


@dataclasses.dataclass(frozen=True)
class BadLine:
    """A line that gives no prompt, and why."""

    line: int
    reason: str


def read_jsonl(path: pathlib.Path) -> tuple[list[Prompt], list[BadLine]]:
    """Reads one prompt a line; empty lines count but are skipped, and a bad line does not stop the others.

    A line is an object with a `prompt` (a text), `messages` (a conversation) or `turns` (texts of the user,
    of which the first is taken), and optionally an `id` or `question_id`, and a `task` or `category`.

    Raises:
        OSError: the file cannot be read.
    """
    prompts, bad_lines = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_parse(line, number))
        except ValueError as error:
            bad_lines.append(BadLine(number, str(error)))
    return prompts, bad_lines


def encode(
    lm: LanguageModel, prompt: Prompt, *, raw: bool, system: str | None, longest: int | None
) -> list[int]:
    """The token ids of a prompt.

    Args:
        raw: continue the text instead of answering it through the chat template. A model without a template
            always continues.
        system: instructions that precede the conversation.
        longest: tokens that a prompt may have; None for any number.

    Raises:
        ValueError: the prompt does not suit the model, or has too many tokens.
    """
    content = prompt.content
    if isinstance(content, str) and system is None and (raw or not lm.instruct):
        ids = lm.encode(content)
    elif raw:
        raise ValueError("a conversation or system text needs the chat template, which --raw turns off")
    else:
        ids = lm.encode_chat(content, system)
    if not ids:
        raise ValueError("the prompt has no tokens")
    if longest is not None and len(ids) > longest:
        raise ValueError(
            f"the prompt has {len(ids)} tokens; with --max-new-tokens, {longest} fit in the model's context"
        )
    return ids


def _parse(line: bytes, number: int) -> Prompt:
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(record, dict):
        raise ValueError(f"is a JSON {type(record).__name__}; expected an object")
    name = record.get("id", record.get("question_id", f"line {number}"))
    task = record.get("task", record.get("category"))
    return Prompt(
        content=_content(record), name=str(name), line=number, task=None if task is None else str(task)
    )


def _content(record: dict[str, Any]) -> str | list[Message]:
    if "prompt" in record:
        return _text("prompt", record["prompt"])
    if "messages" in record:
        return _messages(record["messages"])
    if "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"turns is {turns!r}; expected a list of texts")
        return _text("turns[0]", turns[0])
    raise ValueError(f"has none of prompt, messages and turns; its keys are {', '.join(record) or 'none'}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {value!r}; expected a text")
    return value


def _messages(messages: Any) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is {messages!r}; expected a list of objects with role and content")
    for index, message in enumerate(messages):
        texts = message if isinstance(message, dict) else {}
        if not all(isinstance(texts.get(key), str) for key in ("role", "content")):
            raise ValueError(f"messages[{index}] is {message!r}; expected texts role and content")
    return messages
