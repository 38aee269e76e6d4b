"""A picture of a certificate: margins and laws."""

from __future__ import annotations

import os

import numpy as np

from specjax.certify.certificate import Certificate


def write_figure(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Draws what the checks measured, as PNG, SVG or PDF by the ending of the path. Needs `matplotlib`.

    From left to right: first tokens and first two tokens, by how far their chi-square statistics lie from
    what chance makes, in standard deviations; accepted tokens against the rule's formula, in the reduced
    vocabulary; margins of the tokens at which greedy texts of two widths first differ, against what is a
    near-tie; distance of sampled texts from plain decoding's, falling with the number of samples.
    """
    # The object-oriented interface: no display, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.6), layout="constrained")
    laws, acceptance, margins, distances = figure.subplots(1, 4)
    checks = certificate.checks

    tables = [check for check in checks if "freedom" in check.values]
    z = [
        (check.values["statistic"] - check.values["freedom"]) / np.sqrt(2 * max(check.values["freedom"], 1))
        for check in tables
    ]
    labels = [f"{check.draft}, tokens: {check.values['tokens']}" for check in tables]
    laws.barh(labels, z, color=["tab:blue" if check.passed else "tab:red" for check in tables])
    laws.axvspan(-3, 3, color="0.9", zorder=0)
    laws.set(title="law of the compiled rule", xlabel="chi-square, standard deviations from chance")

    rules = [check for check in checks if "measured" in check.values]
    for check in rules:
        acceptance.scatter(check.values["expected"], check.values["measured"], label=check.draft)
    top = max([1.0, *(check.values["measured"] for check in rules)])
    acceptance.plot([0, top], [0, top], color="0.7", zorder=0)
    acceptance.set(title="accepted tokens a round", xlabel="by the rule's formula", ylabel="measured")

    audits = [check for check in checks if "margins" in check.values]
    for row, check in enumerate(audits):
        values, allowed = check.values["margins"], check.values["allowed"]
        margins.scatter(values, [row] * len(values), color="tab:blue" if check.passed else "tab:red")
        margins.plot([allowed, allowed], [row - 0.4, row + 0.4], color="0.3")
    margins.set_yticks(range(len(audits)), [check.stage for check in audits])
    margins.set(title="first differences between widths", xlabel="margin (logits); line: what is a near-tie")

    for check in (check for check in checks if "by_samples" in check.values):
        counts, seen, floor = np.array(check.values["by_samples"]).T
        [line] = distances.plot(counts, seen, marker="o", label=check.draft)
        distances.plot(counts, floor, linestyle=":", color=line.get_color())
    distances.set(title="plain against speculative samples", xlabel="samples a prompt", ylabel="distance")

    for axes in (acceptance, distances):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.suptitle("passed" if certificate.passed else f"FAILED: {len(certificate.failures)} checks")
    figure.savefig(path)
