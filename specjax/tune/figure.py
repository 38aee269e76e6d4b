"""A picture of a tuning: predictions against measurements, and what a round's time goes to."""

from __future__ import annotations

import os

import numpy as np

from specjax.tune.tuning import CLOSE, Tuning


def write_figure(tuning: Tuning, path: str | os.PathLike[str]) -> None:
    """Draws a tuning, as PNG, SVG or PDF by the ending of the path. Needs `matplotlib`.

    On the left each setting's predicted speed-up against the measured one, with its interval and the band of
    15%. In the middle the milliseconds of an emitted token, by part of the round, and those of plain decoding
    as a line. On the right how often draft tokens were accepted, by position.
    """
    # The object-oriented interface: no display, no global state.
    from matplotlib.figure import Figure

    outcomes = tuning.outcomes
    figure = Figure(figsize=(15, 2.6 + 0.28 * len(outcomes)), layout="constrained")
    against, times, accepted = figure.subplots(1, 3)

    colours = {batch: f"C{index}" for index, batch in enumerate(tuning.batches)}
    values = [1.0]
    for outcome in tuning.measured:
        measured = outcome.measured
        assert measured is not None
        spread = [[measured.median - measured.low], [measured.high - measured.median]]
        colour = colours[outcome.setting.batch]
        against.errorbar(outcome.predicted, measured.median, yerr=spread, fmt="o", color=colour, capsize=2)
        values += [outcome.predicted, measured.high]
    for batch in tuning.batches:
        against.scatter([], [], color=colours[batch], label=f"batch {batch}")
    line = np.array([0.0, 1.1 * max(values)])
    against.plot(line, line, color="0.5", zorder=0)
    # Within 15% of the measured value: predicted / measured - 1 between -15% and 15%.
    against.fill_between(line, line / (1 + CLOSE), line / (1 - CLOSE), color="0.9", zorder=0)
    against.axhline(1, color="0.7", linestyle=":", zorder=0)
    title = (
        f"within {CLOSE:.0%}: {tuning.close} of {len(tuning.measured)}" if tuning.measured else "not measured"
    )
    against.set(xlabel="predicted speed-up", ylabel="measured speed-up", title=title)
    against.set(xlim=line, ylim=line)
    if outcomes:
        against.legend()

    names = [str(outcome.setting) for outcome in outcomes]
    left = np.zeros(len(outcomes))
    for part in ("draft", "verify", "overhead"):
        width = np.array([1e3 * getattr(outcome.time, part) / outcome.tokens for outcome in outcomes])
        times.barh(names, width, left=left, label=part)
        left += width
    for row, outcome in enumerate(outcomes):
        times.plot([1e3 * outcome.plain] * 2, [row - 0.45, row + 0.45], color="0.2")
    times.set(xlabel="ms a token; line: plain decoding", title="where the predicted time goes")
    times.invert_yaxis()
    if outcomes:
        times.legend()

    for outcome in outcomes:
        if outcome.setting.batch != tuning.batches[0]:
            continue  # what is accepted does not depend on the batch
        rates = [np.nan if rate is None else rate for rate in outcome.acceptance]
        name = f"{outcome.setting.draft}, gamma {outcome.setting.gamma}"
        accepted.plot(range(1, len(rates) + 1), rates, marker="o", label=name)
    accepted.set(xlabel="draft position", title="accepted, if those before it were", ylim=(-0.02, 1.02))
    if outcomes:
        accepted.legend()
    figure.savefig(path)
