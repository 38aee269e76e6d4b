"""A plan as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import rich.box
from rich.table import Table

from specjax.plan.plan import Plan


def heading(plan: Plan) -> str:
    """What was planned, in a line."""
    where = " x ".join(f"{size} {axis}" for axis, size in plan.mesh.items()) or "one device"
    return f"{plan.device}, {where}: {plan.batch} rows of {plan.capacity} tokens, gamma {plan.gamma}"


def tables(plan: Plan) -> Iterator[Table]:
    """What there is to say about a plan, for `rich.print`."""
    yield _memory(plan)
    if plan.programs:
        yield _programs(plan)
    if plan.steps:
        yield _steps(plan)
    if plan.speedups:
        yield _speedups(plan)


def notes(plan: Plan) -> Iterator[str]:
    """Lines that belong under the tables."""
    if plan.steps:
        yield (
            "Bytes and flops are counted in the compiled programs, with every row as long as the capacity "
            "allows; ideal: weights and valid cache of each pass once."
        )
    if loops := sum(step.traffic.unknown_loops for step in plan.steps):
        yield f"{loops} loops of unknown length are counted as if they ran once."
    if plan.speedups:
        yield (
            "Times and speed-ups are a MODEL, not a measurement: published speeds, no latencies, each draft "
            "token accepted with the same probability."
        )
    if plan.unsplit:
        yield (
            f"No weight is split over `model`: neither key heads nor widths divide by {plan.mesh['model']}, "
            "so every device holds and reads all of them."
        )
    if plan.published.source:
        yield f"Figures of the device: {plan.published.source}."
    for fault in plan.faults:
        yield f"FAULT: {fault}"


def _table(*columns: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    named = {
        "target weights": memory.target_weights,
        "draft weights": memory.draft_weights,
        "target cache": memory.target_cache,
        "draft cache": memory.draft_cache,
        "other state": memory.other_state,
        "padding": memory.padding,
        "temporaries": memory.temporaries,
        "together": memory.total,
        "of": memory.capacity,
    }
    rows = [(name, "-" if value is None else _gigabytes(value)) for name, value in named.items()]
    return _table("memory of one device", "GB", rows=rows)


def _programs(plan: Plan) -> Table:
    rows = [
        (
            {"start": "prefill", "run": "rounds"}[program.name],
            _gigabytes(program.temporary_bytes),
            _gigabytes(program.alias_bytes),
            _gigabytes(program.donated_bytes),
            str(len(program.copies)),
            str(len(program.copies_once)),
            str(len(program.host_transfers)),
            str(program.row_write_loops),
            f"{program.compile_seconds:.0f}",
        )
        for program in plan.programs
    ]
    columns = ("temporaries GB", "aliased GB", "donated GB", "cache copies", "once", "host transfers")
    return _table("program", *columns, "row-write loops", "compiled in s", rows=rows)


def _steps(plan: Plan) -> Table:
    rows = [
        (
            step.name,
            _gigabytes(step.traffic.total_bytes),
            _gigabytes(step.ideal_bytes),
            f"{step.excess:.2f}",
            f"{step.traffic.flops / 1e12:.3f}",
            f"{step.traffic.collective_bytes / 1e6:.1f}",
            "-" if step.seconds is None else f"{1e3 * step.seconds:.2f}",
        )
        for step in plan.steps
    ]
    columns = ("GB moved", "ideal GB", "ratio", "Tflop", "MB sent", "ms, by model")
    return _table("pass", *columns, rows=rows)


def _speedups(plan: Plan) -> Table:
    rows = [
        (f"{acceptance:.1f}", f"{tokens:.2f}", f"{speedup:.2f}")
        for acceptance, (tokens, speedup) in plan.speedups.items()
    ]
    return _table("acceptance", "tokens/round", "speed-up, by model", rows=rows)


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.3f}"
