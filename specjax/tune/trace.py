"""What was proposed and accepted, round by round, and what other rounds would have made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from specjax.decoding import Decoder, DecodeState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """The rounds of one row, from its first to its last.

    Attributes:
        live: int[R], live draft tokens of each round.
        accepted: int[R], those of them that became text.
        emitted: int[R], tokens that the round added.
    """

    live: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray

    @property
    def rounds(self) -> int:
        return len(self.live)

    @property
    def tokens(self) -> int:
        return int(self.emitted.sum())

    def replay(self, gamma: int, drafted: int) -> Trace:
        """The rounds in which the same text would have been decoded with another, smaller gamma.

        The text is cut into runs of accepted tokens by the tokens that were rejected or had no draft. A draft
        that looks only at the text proposes the same token at the same place, so a run of L tokens takes
        ceil((L + 1) / (gamma + 1)) rounds. Per-position frequencies of the longer draft would not tell: runs
        that it took in one round take several now, so that more rounds begin within one.

        What the draft would have said where the bonus token of a fully accepted block stands is not known: it
        agrees there as often as at the last slot of such blocks, spread evenly over the text.

        Args:
            gamma: draft tokens of a round, at most `drafted`.
            drafted: gamma of the trace.

        Raises:
            ValueError: gamma is not in 1..drafted.
        """
        if not 1 <= gamma <= drafted:
            raise ValueError(f"gamma is {gamma}; expected 1 to the gamma of the trace, {drafted}")
        if gamma == drafted:
            return self
        agreement, proposed = self._along_text(drafted)
        rounds = []
        at, end = 0, self.tokens
        while at < end:
            # The round adds the target's own token, so that the budget has room for one draft token less.
            live = min(gamma, end - at - 1) if proposed[at] else 0
            accepted = int(np.cumprod(agreement[at : at + live]).sum())
            rounds.append((live, accepted, accepted + 1))
            at += accepted + 1
        live, accepted, emitted = np.array(rounds, int).T
        return Trace(live=live, accepted=accepted, emitted=emitted)

    def _along_text(self, drafted: int) -> tuple[np.ndarray, np.ndarray]:
        """For each token of the text: does the draft agree with it (bool), does it propose there (bool)?"""
        reached = np.sum((self.live == drafted) & (self.accepted >= drafted - 1))
        rate = np.sum(self.accepted == drafted) / max(reached, 1)
        agreement, proposed = np.ones(self.tokens, bool), np.ones(self.tokens, bool)
        at, owed = 0, 0.5
        for live, accepted, emitted in zip(self.live, self.accepted, self.emitted, strict=True):
            last = at + emitted - 1
            if accepted < emitted:  # the round's last token is the target's own
                if live == 0:
                    agreement[last] = proposed[last] = False
                elif accepted < live:
                    agreement[last] = False
                else:
                    owed += rate
                    agreement[last] = owed >= 1
                    owed -= agreement[last]
            at += emitted
        return agreement, proposed


def record(decoder: Decoder, state: DecodeState) -> list[Trace]:
    """Runs a state to its end, round by round, and returns the rounds of each row. The state is used up."""
    counts = [_counts(state)]
    while np.any(np.asarray(state.running)):
        state = decoder.run_rounds(state, 1)
        counts.append(_counts(state))
    # [R, 4, B]: what each round added.
    rounds = np.diff(np.array(counts), axis=0)
    traces = []
    for row in range(rounds.shape[2]):
        _, live, accepted, emitted = rounds[rounds[:, 0, row] > 0, :, row].T
        traces.append(Trace(live=live, accepted=accepted, emitted=emitted))
    return traces


def _counts(state: DecodeState) -> np.ndarray:
    """int[4, B]: rounds, live draft tokens, accepted ones and emitted tokens so far."""
    stats = state.stats
    return np.array(jax.device_get((stats.rounds, stats.drafted, stats.accepted, stats.emitted)), int)


def batch_widths(traces: Sequence[Trace], widths: Sequence[int]) -> list[int]:
    """How many tokens each round scores when these rows decode as one batch.

    All rows advance together, so the batch takes as many rounds as its slowest row; each round is as wide as
    the longest proposal of the rows that still run asks for.

    Args:
        widths: what a round may score, ascending; the last holds every proposal.
    """
    rounds = max((trace.rounds for trace in traces), default=0)
    longest = np.zeros(rounds, int)
    for trace in traces:
        longest[: trace.rounds] = np.maximum(longest[: trace.rounds], trace.live)
    return [int(widths[index]) for index in np.searchsorted(widths, longest + 1)]


def counters(traces: Iterable[Trace], gamma: int) -> tuple[np.ndarray, np.ndarray, int]:
    """drafted_at [gamma], accepted_at [gamma] and rounds, summed over rows, as `specjax.Stats` counts."""
    traces = list(traces)
    slots = np.arange(gamma)
    live = np.concatenate([trace.live for trace in traces])
    accepted = np.concatenate([trace.accepted for trace in traces])
    return (
        np.sum(slots < live[:, None], axis=0),
        np.sum(slots < accepted[:, None], axis=0),
        len(live),
    )
