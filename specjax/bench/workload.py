"""What is decoded: prompts by task, in batches of one padded shape."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from specjax.text.generation import padded_width
from specjax.text.prompts import Prompt, read_jsonl

# Of a checkout; an installed package has none.
DEMO_PROMPTS = pathlib.Path(__file__).parents[2] / "configs" / "demo_prompts.jsonl"
_NO_TASK = "prompts"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts that are decoded together.

    Attributes:
        task: of all of them. index: which batch of its task.
        names: of the prompts.
        prompts: int32[B, P], right-padded. lengths: int32[B].
    """

    task: str
    index: int
    names: tuple[str, ...]
    prompts: np.ndarray
    lengths: np.ndarray

    @property
    def token_ids(self) -> list[list[int]]:
        return [row[:length].tolist() for row, length in zip(self.prompts, self.lengths, strict=True)]


def read_tasks(
    path: pathlib.Path | None, names: Sequence[str] = (), per_task: int = 4
) -> dict[str, list[Prompt]]:
    """The first `per_task` prompts of each task, in the order of the file.

    Args:
        path: JSONL as `read_jsonl` takes it, Spec-Bench's files too; None: the demo's.
        names: tasks that are wanted; none for all.

    Raises:
        ValueError: a line holds no prompt, or there is no such task.
        OSError: the file cannot be read.
    """
    if path is None and not DEMO_PROMPTS.exists():
        raise ValueError("no prompts; the demo's are in the repository only, so give a file with --jsonl")
    path = path or DEMO_PROMPTS
    prompts, bad_lines = read_jsonl(path)
    if bad_lines:
        raise ValueError(f"{path}, line {bad_lines[0].line}: {bad_lines[0].reason}")
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task or _NO_TASK, []).append(prompt)
    if not tasks:
        raise ValueError(f"{path} holds no prompts")
    for name in names:
        if name not in tasks:
            raise ValueError(f"{path} has no task {name!r}; it has {', '.join(tasks)}")
    return {name: tasks[name][:per_task] for name in names or tasks}


def make_batches(tasks: Mapping[str, Sequence[tuple[str, Sequence[int]]]], size: int) -> list[Batch]:
    """Batches of `size` prompts of one task each, all padded to one width.

    A task whose prompts do not fill its last batch has its first ones once more.

    Args:
        tasks: names and token ids of the prompts of each task.
    """
    width = padded_width(len(ids) for prompts in tasks.values() for _, ids in prompts)
    batches = []
    for task, prompts in tasks.items():
        for index in range(-(-len(prompts) // size)):
            rows = [prompts[(index * size + row) % len(prompts)] for row in range(size)]
            padded = np.zeros((size, width), np.int32)
            for row, (_, ids) in enumerate(rows):
                padded[row, : len(ids)] = ids
            lengths = np.array([len(ids) for _, ids in rows], np.int32)
            names = tuple(name for name, _ in rows)
            batches.append(Batch(task=task, index=index, names=names, prompts=padded, lengths=lengths))
    return batches
