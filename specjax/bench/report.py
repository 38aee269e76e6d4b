"""A benchmark as tables, for a terminal and for Markdown."""

from __future__ import annotations

import dataclasses

import rich.box
from rich.console import Console
from rich.table import Table

from specjax.bench.record import Benchmark
from specjax.bench.summary import OVERALL, PERCENTILES, Row, fastest_plain, summarize
from specjax.bench.timing import Interval

_ACCEPTED = "accepted at 1, 2, ..."
_UNTIL_THEN = "the tables show the turns that were complete"
_BUSY = 0.05  # of all cores: beyond this, times say as much about other processes as about the arms


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table as texts; the first line is the heading."""

    title: str
    lines: list[list[str]]

    def rich(self) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            box=rich.box.SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
        )
        for index, name in enumerate(self.lines[0]):
            table.add_column(
                name, justify="right" if index else "left", no_wrap=index > 0 and name != _ACCEPTED
            )
        for line in self.lines[1:]:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        heading, *rest = ([cell.replace("\n", " ") for cell in line] for line in self.lines)
        rule = ["---"] + ["--:"] * (len(heading) - 1)
        rows = "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rest))
        return f"{self.title}\n\n{rows}\n"


def print_report(benchmark: Benchmark, console: Console) -> None:
    """Prints all tables, then what the reader should know about them."""
    for grid in grids(benchmark):
        console.print(grid.rich())
    for note in notes(benchmark):
        console.print(note)


def grids(benchmark: Benchmark) -> list[Grid]:
    """All tables, by batch size."""
    return [
        grid
        for batch in benchmark.batches
        for grid in (
            speeds(benchmark, batch),
            rounds(benchmark, batch),
            speedups_by_task(benchmark, batch),
        )
    ]


def speeds(benchmark: Benchmark, batch: int) -> Grid:
    """Tokens a second and speed-ups over all tasks."""
    heading = [
        "arm",
        "tokens/s\ndecode",
        "with\nprefill",
        "x plain, decode\n(95% interval)",
        "x plain, with\nprefill",
        "first\ntoken s",
        "same\ntext",
    ]
    lines = [
        [
            row.label.name,
            _number(row.decode_rate, 1),
            _number(row.total_rate, 1),
            _interval(row.decode_speedup),
            _interval(row.total_speedup),
            _number(row.first_token_seconds, 3),
            _same(row),
        ]
        for row in summarize(benchmark, batch)
    ]
    title = f"batch {batch}, all tasks; plain is {fastest_plain(benchmark, batch)!r}, the fastest"
    return Grid(title, [heading, *lines])


def rounds(benchmark: Benchmark, batch: int) -> Grid:
    """What a round costs and brings, memory, and latencies."""
    heading = [
        "arm",
        "round\nms",
        "verify\nms",
        "draft\nms",
        "tokens\n/round",
        _ACCEPTED,
        "caches\nMB",
        "loop\nMB",
        *(f"p{percentile}\ns" for percentile in PERCENTILES),
        "warm-up\ns",
    ]
    lines = []
    for row in summarize(benchmark, batch):
        facts = row.arm.facts
        lines.append(
            [
                row.label.name,
                _number(row.round_seconds, 2, 1e3),
                _number(row.verify_seconds, 2, 1e3),
                _number(row.draft_seconds, 2, 1e3),
                _number(row.tokens_per_round, 2),
                " ".join("-" if value is None else f"{value:.2f}" for value in row.acceptance),
                _number(facts.cache_bytes, 1, 1e-6),
                _number(facts.loop_bytes, 1, 1e-6),
                *(_number(seconds, 2) for seconds in row.latencies),
                _number(facts.warmup_seconds, 1),
            ]
        )
    return Grid(
        f"batch {batch}, all tasks: rounds, memory, seconds of a request at percentiles", [heading, *lines]
    )


def speedups_by_task(benchmark: Benchmark, batch: int) -> Grid:
    """Speed-ups of each arm: decode time, and with prefill where that is all that is known."""
    overall = summarize(benchmark, batch)
    by_task = {task: summarize(benchmark, batch, task) for task in benchmark.tasks}
    lines = []
    for row in overall:
        cells = []
        for rows in by_task.values():
            own = [r for r in rows if r.label.name == row.label.name]
            cells.append(_interval(task_speedup(own[0])) if own else "")
        lines.append([row.label.name, *cells, _interval(task_speedup(row))])
    return Grid(f"batch {batch}: x plain by task, decode time", [["arm", *by_task, OVERALL], *lines])


def notes(benchmark: Benchmark) -> list[str]:
    """What was measured where, and what to be careful about."""
    settings, place = benchmark.settings, benchmark.environment
    prompts = [length for task in benchmark.prompts.values() for _, length in task]
    lines = [
        f"{settings['model']}, {settings['dtype']}, "
        + (f"sampling {settings['sampling']}" if settings["sampling"] else "greedy")
        + f", {len(prompts)} prompts of {min(prompts)} to {max(prompts)} tokens, "
        f"{settings['max_new_tokens']} new tokens each (EOS ignored), {settings['repeats']} repeats in turns",
        f"jax {place['jax']}, Python {place['python']}, {place['device']} ({place['processor']}), "
        f"{place['cores']} cores, load {_number(place['load'], 1)} at the start",
        *(f"{name}: {version}" for name, version in benchmark.peers.items()),
    ]
    if benchmark.peak_memory is not None:
        size, whose = benchmark.peak_memory
        lines.append(f"peak memory of the {whose}: {size / 1e6:.0f} MB, all arms together")
    lines += _repeated_prompts(benchmark)
    busy = [r.busy_elsewhere for r in benchmark.records if r.busy_elsewhere is not None]
    disturbed = sum(value > _BUSY for value in busy)
    if disturbed:
        lines.append(
            f"warning: in {disturbed} of {len(busy)} runs other processes used more than {_BUSY:.0%} of the "
            f"CPU time, at most {max(busy):.0%}; read ratios and intervals, not seconds"
        )
    differing = {r.arm for r in benchmark.records if r.differing}
    if differing:
        lines.append(
            f"texts that differ from plain decoding's: {', '.join(sorted(differing))}; where two arms round "
            "differently, the other of two nearly tied tokens may win (`specjax certify` tells)"
        )
    if benchmark.interrupted:
        lines.append(f"interrupted: {_UNTIL_THEN}")
    if benchmark.error is not None:
        lines.append(f"ended by an error: {_UNTIL_THEN}; {benchmark.error}")
    return lines


def _repeated_prompts(benchmark: Benchmark) -> list[str]:
    """Batches that hold a prompt twice, because its task has too few."""
    few = [
        f"{task} ({len(prompts)})"
        for task, prompts in benchmark.prompts.items()
        if any(len(prompts) % batch for batch in benchmark.batches)
    ]
    if not few:
        return []
    return [f"prompts that do not fill their last batch, so that some are in it twice: {', '.join(few)}"]


def task_speedup(row: Row) -> Interval | None:
    """The speed-up that tables by task show: of decode time, or with prefill where that is all we know."""
    return row.total_speedup if row.decode_speedup is None else row.decode_speedup


def _same(row: Row) -> str:
    """Rows with the text of the reference, of those compared."""
    if not row.compared:
        return "-"
    if not row.differing:
        return "yes"
    return f"{row.compared - row.differing}/{row.compared}, from {row.first_difference}"


def _interval(value: Interval | None) -> str:
    return "" if value is None else str(value)


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.{digits}f}"
