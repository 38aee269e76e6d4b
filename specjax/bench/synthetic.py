"""Synthetic acceptance: the speed that a pair of models would have at given acceptance rates.

For models without a trained draft, or without trained weights at all. Draft tokens are accepted by a coin
with the given rates instead of by the models' laws, so the text means nothing and **the target's law is
lost**. Only benchmarks use it: it is no rule of `specjax.verify.RULES`, and no configuration reaches it. A
report whose figures come from it must say so; `LABEL` is what it says.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding import DecodeConfig, Decoder, Stop
from specjax.decoding.arguments import concrete
from specjax.decoding.program import Program
from specjax.decoding.state import Request
from specjax.drafts import Draft, Proposal
from specjax.sampling import Noise, Processor, Sampling, likeliest
from specjax.verify import RuleFunction

LABEL = "synthetic acceptance: tokens were accepted at given rates, not by the models"

# A stream of noise that no rule and no draft reads: theirs are numbered by slot.
_COINS = 1 << 30


@dataclasses.dataclass(frozen=True)
class SyntheticRule:
    """Accepts draft token i with probability `rates[i]`, given that all before it were accepted.

    The real rule runs as well, and its answer is used wherever it accepts just as many tokens, so nothing of
    its work can be left out by the compiler. Elsewhere the next token is drawn from the target's own law
    after the accepted ones.

    Attributes:
        rates: of each draft position, gamma of them.
        real: the acceptance rule whose cost is paid.
    """

    rates: tuple[float, ...]
    real: RuleFunction

    def __call__(self, log_p: jax.Array, proposal: Proposal, noise: Noise) -> tuple[jax.Array, jax.Array]:
        """As `specjax.verify.RuleFunction`, but what is emitted has not the law p."""
        gamma = log_p.shape[0] - 1
        slots = jnp.arange(gamma, dtype=jnp.int32)
        coins = jax.random.uniform(jax.random.fold_in(noise.round_key, _COINS), (gamma,), jnp.float32)
        accept = (coins < jnp.array(self.rates, jnp.float32)) & (slots < proposal.live)
        n_accepted = jnp.sum(jnp.cumprod(accept, dtype=jnp.int32), dtype=jnp.int32)
        really_accepted, real_token = self.real(log_p, proposal, noise)
        gumbel = noise.replacement_gumbel(log_p.shape[1], log_p.dtype)
        own = likeliest(log_p[n_accepted] + gumbel)
        return n_accepted, jnp.where(n_accepted == really_accepted, real_token, own)


class SyntheticDecoder(Decoder):
    """A `Decoder` with synthetic acceptance, for measurements of speed and nothing else.

    Every round does all the work of a real one. Rows must be sampled, as greedy rows need no rule.

    Args:
        rates: acceptance of each draft position given the ones before it, gamma numbers in 0..1.

    Raises:
        ValueError: the rates are no such numbers, or, when it is called, a row is greedy.
    """

    def __init__(
        self,
        target: Any,
        draft: Draft,
        config: DecodeConfig,
        *,
        rates: tuple[float, ...],
        processors: tuple[Processor, ...] = (),
    ) -> None:
        gamma = draft.slots(config.gamma)
        if len(rates) != gamma or not all(0 <= rate <= 1 for rate in rates):
            raise ValueError(f"rates is {rates}; expected {gamma} probabilities, one for each draft position")
        super().__init__(target, draft, config, processors=processors)
        self.rates = tuple(float(rate) for rate in rates)

    def _program(self, capacity: int) -> Program:
        program = super()._program(capacity)
        rule = dataclasses.replace(
            program.rule, name="synthetic", apply=SyntheticRule(self.rates, program.rule.apply)
        )
        return dataclasses.replace(program, rule=rule)

    def _request(
        self, batch: int, sampling: Sampling | None, draft_sampling: Sampling | None, stop: Stop | None
    ) -> Request:
        request = super()._request(batch, sampling, draft_sampling, stop)
        greedy = request.sampling.greedy
        if concrete(greedy) and np.any(np.asarray(greedy)):
            row = int(np.argmax(np.asarray(greedy)))
            raise ValueError(
                f"sampling.temperature is 0 in row {row}; expected above 0: synthetic acceptance is a rule, "
                "and greedy rows are verified without one"
            )
        return request
