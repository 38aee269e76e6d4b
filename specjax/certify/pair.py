"""What is certified: a target, prompts and settings, with the decoders that the checks share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.decoding import DecodeConfig, Decoder, DecodeState, GenerateResult, Stop
from specjax.decoding.stop import select_stop
from specjax.drafts import Draft, Model, NoDraft
from specjax.sampling import Processor, Sampling
from specjax.sampling.params import select_rows


def self_draft(target: Any) -> Model:
    """The target as its own draft.

    The weights are the target's, but seem to be others: any draft of the target's shape, such as a perturbed
    one, then shares the compiled programs.
    """
    return Model(nnx.clone(target))


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A target with its prompts and settings.

    Attributes:
        prompts: int32[B, P], right-padded. lengths: int32[B].
        config: as in production; `rule` is that of sampled rows.
        sampling, draft_sampling, stop, processors: as in production; checks of laws need a temperature
            above 0.
    """

    target: Any
    prompts: np.ndarray
    lengths: np.ndarray
    config: DecodeConfig
    sampling: Sampling
    draft_sampling: Sampling | None = None
    stop: Stop = dataclasses.field(default_factory=Stop)
    processors: tuple[Processor, ...] = ()

    @classmethod
    def of(
        cls,
        target: Any,
        prompts: Sequence[Sequence[int]],
        config: DecodeConfig,
        sampling: Sampling,
        **settings: Any,
    ) -> Subject:
        """Pads prompts of different lengths. The other settings are those of the attributes."""
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        padded = np.zeros((len(prompts), lengths.max()), np.int32)
        for row, ids in zip(padded, prompts, strict=True):
            row[: len(ids)] = ids
        return cls(target, padded, lengths, config, sampling, **settings)

    @property
    def greedy(self) -> Sampling:
        """The sampling settings with temperature 0: penalties and bans stay."""
        return dataclasses.replace(self.sampling, temperature=0.0)

    def rows(self, order: np.ndarray) -> Subject:
        """The same with other rows, or with these in another order."""
        return dataclasses.replace(
            self,
            prompts=self.prompts[order],
            lengths=self.lengths[order],
            sampling=select_rows(self.sampling, order, len(self.lengths)),
            draft_sampling=self.draft_sampling and select_rows(self.draft_sampling, order, len(self.lengths)),
            stop=select_stop(self.stop, order, len(self.lengths)),
        )

    def decoder(self, draft: Draft, **changes: Any) -> Decoder:
        """A decoder of this target; decoders that would compile to the same share their programs."""
        config = dataclasses.replace(self.config, **changes)
        return Decoder(self.target, draft, config, processors=self.processors)

    def generate(self, draft: Draft, sampling: Sampling, **changes: Any) -> GenerateResult:
        """Text of every prompt, on the host, in rounds of one width.

        By the programs that the other checks use too: most of a certification's time is compiling.
        """
        decoder = self.decoder(draft, **{"verify_widths": (), **changes})
        state = decoder.run_rounds(self.start(decoder, sampling))
        return jax.device_get(decoder.result(state))

    def plain(self, sampling: Sampling, *, width: int, **changes: Any) -> GenerateResult:
        """Plain decoding in rounds that score `width` + 1 tokens."""
        return self.generate(NoDraft(width=width), sampling, **changes)

    def brief(self, new_tokens: int) -> Subject:
        """The same with budgets of no more than so many tokens, and the same programs."""
        budget = min(new_tokens, self.config.max_new_tokens)
        return dataclasses.replace(self, stop=self.stop.at_most(budget))

    def start(self, decoder: Decoder, sampling: Sampling) -> DecodeState:
        return decoder.start(
            self.prompts,
            self.lengths,
            sampling=sampling,
            draft_sampling=self.draft_sampling,
            stop=self.stop,
        )

    @functools.cached_property
    def teacher_forced(self) -> TeacherForced:
        return TeacherForced(self.target)


class TeacherForced:
    """Logits of given texts in one pass over each, from an empty cache."""

    def __init__(self, target: Any) -> None:
        graphdef, self._weights = nnx.split(target)

        @jax.jit
        def logits(weights: Any, tokens: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
            model = nnx.merge(graphdef, weights)
            batch, width = tokens.shape
            positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), tokens.shape)
            hidden, _, _ = model(tokens, positions, model.init_cache(batch, width))
            places = jnp.minimum(first[:, None] + count, width - 1)
            return model.logits(jnp.take_along_axis(hidden, places[..., None], axis=1))

        self._logits = logits

    def __call__(self, tokens: np.ndarray, first: np.ndarray, count: int) -> np.ndarray:
        """Logits after some tokens of each text.

        Args:
            tokens: int[B, N], right-padded. first: int[B], the first of `count` positions.

        Returns:
            float32[B, count, V]
        """
        # A multiple of 64 tokens: texts grow, programs should not.
        tokens = np.pad(tokens, ((0, 0), (0, -tokens.shape[1] % 64)))
        slots = jnp.arange(count, dtype=jnp.int32)
        return np.asarray(
            self._logits(self._weights, jnp.asarray(tokens, jnp.int32), jnp.asarray(first), slots)
        )
