"""Renders files of `specjax bench --json` as Markdown tables and pictures.

    python scripts/bench_tables.py results/*.json --out docs/benchmarks

Writes NAME.md (all tables, and what was measured where) and NAME.png for each NAME.json into the folder, and
prints what it wrote. Files without measurements are left out and named; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from specjax.bench.figure import write_figure
from specjax.bench.record import Benchmark
from specjax.bench.report import grids, notes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    left_out = 0
    for path in arguments.files:
        try:
            benchmark = Benchmark.read_json(path)
            if not benchmark.records:
                raise ValueError("nothing was measured")
        except (OSError, ValueError) as error:
            print(f"left out: {path}: {error}", file=sys.stderr)
            left_out += 1
            continue
        text, picture = (arguments.out / f"{path.stem}{suffix}" for suffix in (".md", ".png"))
        text.write_text(markdown(benchmark, picture.name), encoding="utf-8")
        write_figure(benchmark, picture)
        print(f"{text}\n{picture}")
    return 1 if left_out else 0


def markdown(benchmark: Benchmark, picture: str) -> str:
    """Notes, picture and tables of one run."""
    listed = "\n".join(f"- {note}" for note in notes(benchmark))
    tables = "\n".join(grid.markdown() for grid in grids(benchmark))
    return f"{listed}\n\n![speed-ups]({picture})\n\n{tables}"


if __name__ == "__main__":
    sys.exit(main())
