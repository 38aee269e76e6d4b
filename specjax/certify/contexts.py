"""The laws of a pair of models in rounds of real decoding."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from specjax.certify.pair import Subject
from specjax.drafts import Draft

_ROUNDS_BETWEEN = 3


@dataclasses.dataclass(frozen=True)
class Context:
    """The laws of one row in one round of real decoding.

    Attributes:
        p: float64[T, V], the target's after each prefix of the draft.
        q: float64[gamma, V], the draft's; None for a point mass.
        tokens: int[gamma], what was drafted. live: how many of them count.
    """

    p: np.ndarray
    q: np.ndarray | None
    tokens: np.ndarray
    live: int

    def drafted(self, slot: int) -> np.ndarray:
        """float64[V], the law that the token in a slot is drafted from; 0 where none is."""
        if slot >= self.live:
            return np.zeros(self.p.shape[1])
        if self.q is None:
            return (np.arange(self.p.shape[1]) == self.tokens[slot]).astype(float)
        return self.q[slot]

    def reduced(self, size: int) -> Context:
        """The same with a vocabulary of the `size` likeliest tokens, and one more for all others together.

        Each position keeps tokens of its own: a rule never compares tokens of two positions.
        """
        p, q, tokens = [], [], self.tokens.copy()
        for slot, law in enumerate(self.p):
            drafted = self.drafted(slot)
            kept = np.argsort(-(law + drafted), kind="stable")[:size]
            p.append(_merged(law, kept))
            q.append(_merged(drafted, kept))
            if slot < len(tokens):
                places = np.flatnonzero(kept == tokens[slot])
                tokens[slot] = places[0] if len(places) else len(kept)
        return Context(np.stack(p), None if self.q is None else np.stack(q[:-1]), tokens, self.live)


def contexts_of(subject: Subject, draft: Draft, count: int) -> list[Context]:
    """Contexts from rounds of sampled decoding, of every prompt in turn, until there are `count`."""
    decoder = subject.decoder(draft)
    state = subject.start(decoder, subject.sampling)
    contexts: list[Context] = []
    while len(contexts) < count and np.any(np.asarray(state.running)):
        scored = jax.device_get(decoder.score(state))
        proposal = scored.proposal
        for row in np.flatnonzero(np.asarray(state.running)):
            p = as_law(scored.log_p[row])
            q = None if proposal.log_q is None else as_law(proposal.log_q[row])
            live = int(proposal.live[row])
            if np.all(np.isfinite(p)) and (q is None or np.all(np.isfinite(q[:live]))):
                contexts.append(Context(p, q, proposal.tokens[row], live))
        state = decoder.run_rounds(state, _ROUNDS_BETWEEN)
    return contexts[:count]


def as_law(log_law: jax.Array) -> np.ndarray:
    """Probabilities float64 that add up to 1, which float32 ones do only nearly."""
    law = np.exp(np.asarray(log_law, np.float64))
    return law / law.sum(axis=-1, keepdims=True)


def _merged(law: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.append(law[kept], max(law.sum() - law[kept].sum(), 0.0))
