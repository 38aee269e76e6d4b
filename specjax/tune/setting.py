"""What can be chosen, and the prompts that a choice is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.decoding import DecodeConfig, Decoder, DecodeState, Stop
from specjax.sampling import Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to speculate.

    Attributes:
        draft: its name.
        gamma, verify_widths: as in `DecodeConfig`.
        batch: rows that decode together.
    """

    draft: str
    gamma: int
    verify_widths: tuple[int, ...] = ()
    batch: int = 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens that a round may score."""
        return (*self.verify_widths, self.gamma + 1)

    def config(self, config: DecodeConfig) -> DecodeConfig:
        """The configuration with this setting's draft length."""
        return dataclasses.replace(config, gamma=self.gamma, verify_widths=self.verify_widths)

    def __str__(self) -> str:
        widths = f" widths {','.join(map(str, self.widths))}" if self.verify_widths else ""
        return f"{self.draft} gamma {self.gamma}{widths} batch {self.batch}"


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Prompts that decode as one batch.

    Attributes:
        indices: which of all prompts they are.
        tokens: int32[B, P], right-padded. lengths: int32[B].
    """

    indices: tuple[int, ...]
    tokens: np.ndarray
    lengths: np.ndarray

    def start(self, decoder: Decoder, sampling: Sampling) -> DecodeState:
        """The state before the first round. Rows end at their budget alone: all ways emit as many tokens."""
        sampling = self.seeded(sampling)
        return decoder.start(self.tokens, self.lengths, sampling=sampling, stop=Stop(eos_ids=[]))

    def seeded(self, sampling: Sampling) -> Sampling:
        """The settings with a seed for each row, which a prompt keeps whatever its row."""
        seeds = np.asarray(sampling.seed, np.uint32) + np.array(self.indices, np.uint32)
        return dataclasses.replace(sampling, seed=seeds)


def groups(prompts: Sequence[Sequence[int]], batch: int, width: int) -> list[Group]:
    """All prompts in batches, padded to `width` tokens; the last batch is filled up from the beginning."""
    count = -(-len(prompts) // batch)
    made = []
    for first in range(0, count * batch, batch):
        indices = tuple(index % len(prompts) for index in range(first, first + batch))
        tokens = np.zeros((batch, width), np.int32)
        for row, index in zip(tokens, indices, strict=True):
            row[: len(prompts[index])] = prompts[index]
        made.append(Group(indices, tokens, np.array([len(prompts[index]) for index in indices], np.int32)))
    return made


def typical(batches: Sequence[Group]) -> Group:
    """The batch whose prompts are as long as those of most: of median total length."""
    return sorted(batches, key=lambda group: int(group.lengths.sum()))[(len(batches) - 1) // 2]


def check_settings(settings: Sequence[Setting], drafts: Any) -> None:
    """Finds what makes no sense before anything compiles.

    Raises:
        ValueError: names the setting.
    """
    if not settings:
        raise ValueError("settings is empty; expected at least one")
    for setting in settings:
        if setting.draft not in drafts:
            raise ValueError(f"setting {setting}: no draft of that name; expected one of {', '.join(drafts)}")
        if setting.gamma < 1 or setting.batch < 1:
            raise ValueError(f"setting {setting}: expected gamma and batch to be at least 1")
        setting.config(DecodeConfig())
    if len(set(settings)) != len(settings):
        raise ValueError("settings holds one of them twice; expected different ones")
