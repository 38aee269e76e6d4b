"""What an acceptance rule is."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax

from specjax.drafts import Proposal
from specjax.sampling import Noise


class RuleFunction(Protocol):
    """Decides for one row how much of its proposal becomes text, and which token follows."""

    def __call__(self, log_p: jax.Array, proposal: Proposal, noise: Noise) -> tuple[jax.Array, jax.Array]:
        """Applies the rule.

        Args:
            log_p: float[T, V], the processed target's log-law after each prefix of the draft, T = gamma + 1.
            proposal: the row's, `tokens` int32[gamma], `live` int32[], `log_q` float[gamma, V] or None.
            noise: the row's.

        Returns:
            n_accepted int32[] in 0..live, and next_token int32[].
        """
        ...


@dataclasses.dataclass(frozen=True)
class Rule:
    """An acceptance rule for sampled rows.

    Attributes:
        name: as in `DecodeConfig.rule`.
        apply: the rule itself.
        shares_noise: drafts draw from the position-keyed noise that the rule will use.
    """

    name: str
    apply: RuleFunction
    shares_noise: bool = False
