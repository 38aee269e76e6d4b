"""The static side of a decoding program: what a shape or a branch depends on."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.decoding.config import DecodeConfig
from specjax.drafts import Draft
from specjax.policies import Policy
from specjax.sampling import Pipeline, Processor
from specjax.verify import RULES, Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Everything that the compiled loop depends on, apart from array shapes.

    Attributes:
        gamma: draft slots, G; a round scores G + 1 tokens at most.
        widths: how many tokens a round may score, ascending, the last G + 1.
        capacity: tokens a row can hold.
        longest: tokens a row's text may have: the capacity, or the target's context if that is shorter.
        positional: lowering a length is all that the target's cache needs to forget.
        chunk: tokens fed at a time while catching up with a prompt.
        cache_capacity: slots of a cache. A row at its capacity still has room for the widest program that
            writes: no write is ever clamped, which would move it onto valid entries.
    """

    config: DecodeConfig
    draft: Draft
    rule: Rule
    pipeline: Pipeline
    vocab_size: int
    gamma: int
    widths: tuple[int, ...]
    capacity: int
    longest: int
    positional: bool
    chunk: int

    @property
    def policy(self) -> Policy:
        return self.config.length_policy

    @property
    def cache_capacity(self) -> int:
        return self.capacity + max(self.gamma + 1, self.chunk)

    def with_processors(self, processors: tuple[Processor, ...]) -> Program:
        """The program with the caller's own processors, whose arrays may be traced."""
        return dataclasses.replace(self, pipeline=dataclasses.replace(self.pipeline, user=processors))

    def for_admission(self) -> Program:
        """The same without what taking prompts in does not depend on: the rule, the widths of a round."""
        config = dataclasses.replace(self.config, rule="token", verify_widths=(), debug=False)
        return dataclasses.replace(self, config=config, rule=RULES["token"], widths=(self.gamma + 1,))

    @classmethod
    def build(cls, target: Any, draft: Draft, config: DecodeConfig, capacity: int) -> Program:
        """The program for rows that hold `capacity` tokens.

        Raises:
            ValueError: the configuration asks for what the target cannot do.
        """
        gamma = draft.slots(config.gamma)
        widths = (*(width for width in config.verify_widths if width <= gamma), gamma + 1)
        positional = getattr(target, "positional_cache", False)
        if len(widths) > 1 and not positional:
            raise ValueError(
                f"DecodeConfig.verify_widths is {config.verify_widths}, but the target does not say "
                "positional_cache; expected (), since its pending cache may have a shape for each width"
            )
        return cls(
            config=config,
            draft=draft.without_module(),
            rule=RULES[config.rule],
            pipeline=Pipeline(longest_bias=config.max_bias_len),
            vocab_size=target.vocab_size,
            gamma=gamma,
            widths=widths,
            capacity=capacity,
            longest=min(capacity, getattr(target, "context_length", None) or capacity),
            positional=positional,
            chunk=min(config.prefill_chunk, max(capacity - config.max_new_tokens, 1)),
        )
