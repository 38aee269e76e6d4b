"""What is static in a decoding program, and the words it reports with."""

from __future__ import annotations

import dataclasses
import enum

from specjax.policies import Policy, policy_named
from specjax.verify import RULES


class FinishReason(enum.IntEnum):
    """Why a row stopped. Values are part of the interface."""

    RUNNING = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    ERROR = 4
    CANCELLED = 5
    DEADLINE = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Everything that shapes the compiled program; another value compiles anew. Hashable.

    Attributes:
        max_new_tokens: width of the output. `Stop.max_new_tokens` gives rows smaller budgets without
            compiling anew.
        gamma: draft tokens per round, at most. A round scores gamma + 1 tokens, unless there are narrower
            verify_widths.
        verify_widths: other numbers of tokens to score, ascending and below gamma + 1. A round scores the
            smallest number that holds the longest proposal of the batch. This pays where each scored token
            costs time, as on CPUs, and for drafts of varying length: `Ngram`, which then also proposes less
            after a short match. Each width is one more copy of the target's layers to compile, and rounds of
            several widths are rounded differently, so that neighbours can tip a near-tie. See
            `power_widths`. Needs a target with `positional_cache`.
        rule: acceptance rule of sampled rows. "token": rejection sampling, token by token. "block": of whole
            blocks, which accepts as many tokens or more; for point masses, where both accept the same, it is
            "token". "coupled": text that depends on target, prompt and seed alone, whatever the draft, up to
            near-ties between compiled shapes; accepts a little less. "auto": "block".
        policy: how many of the gamma draft tokens a round proposes: an instance of one of `specjax.policies`,
            or its name, such as "adaptive" or "confidence:0.6". By default all that may be of use.
        capacity: tokens, prompt and output together, that a row can hold. None: the padded prompt width plus
            max_new_tokens. Give more to continue a conversation with `Decoder.extend`.
        prefill_chunk: prompt tokens scored at a time.
        logprobs: also return the log-probabilities of the emitted tokens.
        debug: also check the costly invariants each round, and raise when one breaks.
        pad_id: fills the output after a row's end.
        max_eos, max_stop, max_stop_len: slots for EOS ids, stop sequences, and tokens in one.
        max_bias, max_bias_len: slots for biases and bans of a row, together, and tokens in one; as many slots
            for its suppressed first tokens.
    """

    max_new_tokens: int = 128
    gamma: int = 4
    verify_widths: tuple[int, ...] = ()
    rule: str = "auto"
    policy: Policy | str = "fixed"
    capacity: int | None = None
    prefill_chunk: int = 128
    logprobs: bool = False
    debug: bool = False
    pad_id: int = 0
    max_eos: int = 8
    max_stop: int = 4
    max_stop_len: int = 16
    max_bias: int = 32
    max_bias_len: int = 8

    def __post_init__(self) -> None:
        for name, least in (
            ("max_new_tokens", 1),
            ("gamma", 0),
            ("prefill_chunk", 1),
            ("pad_id", 0),
            ("max_eos", 0),
            ("max_stop", 0),
            ("max_stop_len", 1),
            ("max_bias", 0),
            ("max_bias_len", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"DecodeConfig.{name} is {value!r}; expected an integer of at least {least}")
        widths = self.verify_widths
        if not isinstance(widths, tuple) or not all(type(width) is int for width in widths):
            raise ValueError(f"DecodeConfig.verify_widths is {widths!r}; expected a tuple of integers")
        if list(widths) != sorted(set(widths)) or (widths and not 1 <= widths[0] <= widths[-1] <= self.gamma):
            raise ValueError(
                f"DecodeConfig.verify_widths is {widths}; expected ascending numbers from 1 to gamma, "
                f"{self.gamma}"
            )
        if self.capacity is not None and not (isinstance(self.capacity, int) and self.capacity >= 1):
            raise ValueError(
                f"DecodeConfig.capacity is {self.capacity!r}; expected an integer of at least 1, or None"
            )
        if self.rule not in RULES:
            names = ", ".join(map(repr, RULES))
            raise ValueError(f"DecodeConfig.rule is {self.rule!r}; expected one of {names}")

        try:
            self.length_policy.check(self.gamma)
        except ValueError as error:
            raise ValueError(f"DecodeConfig.policy: {error}") from error

    @property
    def length_policy(self) -> Policy:
        """`policy`, also where that is a name."""
        return policy_named(self.policy) if isinstance(self.policy, str) else self.policy

    def row_capacity(self, prompt_width: int) -> int:
        """Tokens that a row can hold when prompts are padded to `prompt_width`."""
        return self.capacity or prompt_width + self.max_new_tokens


def power_widths(gamma: int) -> tuple[int, ...]:
    """`DecodeConfig.verify_widths` for proposals of 1, 2, 4, ... tokens: (2, 3, 5) for gamma 8."""
    return tuple(2**power + 1 for power in range(gamma.bit_length()) if 2**power < gamma)
