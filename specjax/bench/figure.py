"""A picture of a benchmark: speed-ups by task and draft, by gamma, and by batch size."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from specjax.bench.record import Benchmark
from specjax.bench.report import task_speedup
from specjax.bench.summary import OVERALL, Row, fastest_plain, summarize


def write_figure(benchmark: Benchmark, path: str | os.PathLike[str]) -> None:
    """Draws what was measured, as PNG, SVG or PDF by the ending of the path. Needs `matplotlib`.

    From left to right: how many times as fast as plain decoding, by task, each draft with the gamma that is
    fastest over all tasks; the same over all tasks by gamma; and tokens a second by batch size, if there are
    several. Bars and lines of the first two are of the smallest batch size, with 95% intervals.

    Raises:
        ValueError: nothing was measured.
    """
    if not benchmark.records:
        raise ValueError("nothing was measured, so there is nothing to draw")
    # The object-oriented interface: no display, no global state.
    from matplotlib.figure import Figure

    batches = benchmark.batches
    panels = 2 + (len(batches) > 1)
    figure = Figure(figsize=(5.5 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels)
    best = _best(benchmark, batches[0])
    _by_task(axes[0], benchmark, batches[0], best)
    _by_gamma(axes[1], benchmark, batches[0])
    if len(batches) > 1:
        _by_batch(axes[2], benchmark)
    settings, device = benchmark.settings, benchmark.environment["device"]
    figure.suptitle(
        f"{settings['model']}, {settings['dtype']}, {device}, {settings['max_new_tokens']} new tokens"
    )
    figure.savefig(path)


def _best(benchmark: Benchmark, batch: int) -> list[str]:
    """Of each draft and each peer's mode the arm with the gamma that is fastest over all tasks."""
    best: dict[tuple[str, str | None], Row] = {}
    for row in summarize(benchmark, batch):
        if row.label.kind == "plain":
            continue
        key = (row.label.name.split(",")[0], row.label.draft)
        if key not in best or _middle(row) > _middle(best[key]):
            best[key] = row
    return [row.label.name for row in best.values()]


def _by_task(axes: Any, benchmark: Benchmark, batch: int, arms: list[str]) -> None:
    columns = [*benchmark.tasks, OVERALL]
    width = 0.8 / max(len(arms), 1)
    for number, arm in enumerate(arms):
        rows = [[r for r in summarize(benchmark, batch, task) if r.label.name == arm] for task in columns]
        found = [(place, own[0]) for place, own in enumerate(rows) if own and task_speedup(own[0])]
        _draw(
            axes.bar,
            [place + (number - (len(arms) - 1) / 2) * width for place, _ in found],
            [row for _, row in found],
            width=width,
            label=arm,
            capsize=2,
            error_kw={"elinewidth": 1},
        )
    axes.axhline(1.0, color="0.3", linewidth=1)
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set(title=f"by task, batch {batch}", ylabel="times as fast as plain decoding")
    if arms:
        axes.legend(fontsize="small")


def _by_gamma(axes: Any, benchmark: Benchmark, batch: int) -> None:
    rows = [row for row in summarize(benchmark, batch) if row.label.kind == "draft"]
    for draft in dict.fromkeys(row.label.draft for row in rows):
        own = sorted((r for r in rows if r.label.draft == draft), key=lambda row: row.label.gamma)
        own = [row for row in own if task_speedup(row)]
        _draw(axes.errorbar, [row.label.gamma for row in own], own, marker="o", capsize=3, label=draft)
    axes.set_xticks(sorted({row.label.gamma for row in rows}))
    axes.axhline(1.0, color="0.3", linewidth=1)
    axes.set(
        title=f"by draft tokens a round, batch {batch}", xlabel="gamma", ylabel="times as fast, all tasks"
    )
    if rows:
        axes.legend(fontsize="small")


def _by_batch(axes: Any, benchmark: Benchmark) -> None:
    speeds: dict[str, list[tuple[int, float]]] = {}
    for batch in benchmark.batches:
        for row in summarize(benchmark, batch):
            plain = row.label.kind == "plain"
            if row.decode_rate is None or (plain and row.label.name != fastest_plain(benchmark, batch)):
                continue
            name = "plain, fastest width" if plain else row.label.name
            speeds.setdefault(name, []).append((batch, row.decode_rate))
    for arm, points in speeds.items():
        axes.plot(*np.array(points).T, marker="o", label=arm)
    axes.set(title="by rows decoded together", xlabel="batch", ylabel="tokens/s, all rows, decode")
    axes.set_xscale("log", base=2)
    axes.set_xticks(benchmark.batches, [str(batch) for batch in benchmark.batches])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _draw(draw: Any, x: list[float], rows: list[Row], **options: Any) -> None:
    """Draws the speed-ups of some rows with their intervals."""
    intervals = [interval for row in rows if (interval := task_speedup(row))]
    middle = np.array([interval.median for interval in intervals])
    low = np.array([interval.low for interval in intervals])
    high = np.array([interval.high for interval in intervals])
    # The middle of a few values may lie a rounding error outside of their interval.
    draw(x, middle, yerr=np.maximum([middle - low, high - middle], 0.0), **options)


def _middle(row: Row) -> float:
    interval = task_speedup(row)
    return interval.median if interval else 0.0
