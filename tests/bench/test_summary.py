"""Figures of known records."""

import dataclasses

import numpy as np
import pytest

from specjax.bench.arms import Facts, Label
from specjax.bench.figure import write_figure
from specjax.bench.record import Benchmark, MeasuredArm, Record
from specjax.bench.report import grids, notes, print_report
from specjax.bench.summary import OVERALL, fastest_plain, speedup, summarize
from specjax.text.output import stderr_console

LABELS = (
    Label(name="plain", kind="plain", batch=1),
    Label(name="plain, 5 scored", kind="plain", batch=1, gamma=4, reference="plain"),
    Label(name="model, gamma 4", kind="draft", batch=1, draft="model", gamma=4, reference="plain, 5 scored"),
    Label(
        name="ngram, gamma 4",
        kind="draft",
        batch=1,
        draft="ngram",
        gamma=4,
        verify_widths=(2,),
        reference="plain, 5 scored",
    ),
    Label(name="other plain", kind="peer", batch=1, reference="plain"),
)
# Seconds of decoding 100 tokens, and rounds.
TIMES = {
    "plain": (10.0, 100),
    "plain, 5 scored": (12.0, 100),
    "model, gamma 4": (5.0, 25),
    "ngram, gamma 4": (8.0, 50),
}


def record(label, task, index, turn):
    factor = (1.0 + 0.5 * turn) * (2.0 if task == "long" else 1.0)  # what slows a turn slows all of it
    decode, rounds = TIMES.get(label.name, (None, None))
    peer = label.kind == "peer"
    return Record(
        arm=label.name,
        batch=label.batch,
        task=task,
        index=index,
        turn=turn,
        tokens=100,
        decode_tokens=99 if peer else 100,
        total_seconds=40.0 * factor if peer else (decode + 1.0) * factor,
        first_token_seconds=None if peer else 1.1 * factor,
        decode_seconds=None if peer else decode * factor,
        rounds=rounds,
        row_rounds=rounds or 0,
        drafted_at=[20, 10, 0] if label.kind == "draft" else [],
        accepted_at=[15, 2, 0] if label.kind == "draft" else [],
        compared=1 if label.reference else 0,
        differing=int(peer and index == 1),
        first_difference=7 if peer and index == 1 else None,
        busy_elsewhere=0.01 if turn else 0.3,
    )


@pytest.fixture
def benchmark():
    facts = {"ngram, gamma 4": Facts(warmup_seconds=2.0, propose_seconds=0.001, cache_bytes=10**6)}
    return Benchmark(
        settings={"model": "m", "dtype": "float32", "sampling": {}, "max_new_tokens": 100, "repeats": 3},
        environment={"jax": "1", "python": "3", "device": "cpu", "processor": "p", "cores": 2, "load": 0.5},
        prompts={"short": [("a", 10), ("b", 20)], "long": [("c", 30)]},
        peers={"other": "other 1.0"},
        arms=[
            MeasuredArm(label=label, facts=facts.get(label.name, Facts(warmup_seconds=1.0)))
            for label in LABELS
        ],
        records=[
            record(label, task, index, turn)
            for task, requests in (("short", 2), ("long", 1))
            for index in range(requests)
            for turn in range(3)
            for label in LABELS
        ],
        peak_memory=(5 * 10**6, "process"),
    )


def rows(benchmark, task=OVERALL):
    return {row.label.name: row for row in summarize(benchmark, 1, task)}


def test_rates_are_all_tokens_over_the_median_times(benchmark):
    short = rows(benchmark, "short")["plain"]
    assert short.decode_rate == pytest.approx(100 / 15.0)  # turns take 10, 15 and 20 seconds
    assert short.total_rate == pytest.approx(100 / 16.5)
    assert short.first_token_seconds == pytest.approx(1.65)
    assert (short.requests, short.repeats) == (2, 3)
    assert rows(benchmark)["plain"].decode_rate == pytest.approx(300 / (15 + 15 + 30))


def test_speedups_are_of_pairs_and_against_the_fastest_plain_width(benchmark):
    model = rows(benchmark)["model, gamma 4"]
    assert fastest_plain(benchmark, 1) == "plain"
    assert (model.decode_speedup.low, model.decode_speedup.high) == pytest.approx((2.0, 2.0))
    assert model.total_speedup.median == pytest.approx(11 / 6)
    # A machine on which five tokens are scored faster than one.
    benchmark.records = [
        dataclasses.replace(r, decode_seconds=r.decode_seconds / 2) if r.arm == "plain, 5 scored" else r
        for r in benchmark.records
    ]
    assert fastest_plain(benchmark, 1) == "plain, 5 scored"
    assert rows(benchmark)["model, gamma 4"].decode_speedup.median == pytest.approx(6 / 5)


def test_a_round_is_split_where_it_scores_as_many_tokens_as_plain_decoding(benchmark):
    found = rows(benchmark, "short")
    model = found["model, gamma 4"]
    assert model.verify_seconds == pytest.approx(0.12 * 1.5)
    assert model.round_seconds == pytest.approx(0.2 * 1.5)
    assert model.draft_seconds == pytest.approx(0.08 * 1.5)
    assert found["ngram, gamma 4"].draft_seconds == 0.001  # measured on its own
    assert model.tokens_per_round == 4.0
    assert model.acceptance == [0.75, 0.2, None]


def test_what_is_unknown_of_a_peer_is_left_open(benchmark):
    peer = rows(benchmark)["other plain"]
    assert peer.decode_rate is peer.decode_speedup is peer.first_token_seconds is peer.round_seconds is None
    assert peer.total_speedup.median == pytest.approx(11 / 40)
    assert (peer.compared, peer.differing, peer.first_difference) == (9, 3, 7)


def test_percentiles_are_of_requests(benchmark):
    seconds = [r.total_seconds for r in benchmark.records if r.arm == "plain"]
    assert rows(benchmark)["plain"].latencies == pytest.approx(np.percentile(seconds, (50, 95, 99)))


def test_tasks_weigh_alike_however_many_requests_they_have():
    many = [np.full(3, 4.0)] * 9
    interval = speedup([many, [np.full(3, 1.0)]])
    assert interval.median == pytest.approx(2.0)
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


def test_the_interval_of_a_speedup_covers_the_truth():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        requests = np.exp(rng.normal(np.log(2.0), 0.3, 12))
        tasks = [[ratio * np.exp(rng.normal(0, 0.1, 5)) for ratio in requests]]
        interval = speedup(tasks, seed=trial)
        assert interval.low < interval.median < interval.high
        covered += interval.low <= 2.0 <= interval.high
    assert 85 <= covered <= 99


def test_a_file_gives_the_same_benchmark_back(benchmark, tmp_path):
    benchmark.write_json(tmp_path / "out.json")
    read = Benchmark.read_json(tmp_path / "out.json")
    assert (read.arms, read.records) == (benchmark.arms, benchmark.records)
    assert [grid.markdown() for grid in grids(read)] == [grid.markdown() for grid in grids(benchmark)]
    (tmp_path / "bad.json").write_text('{"arms": [{}]}')
    with pytest.raises(ValueError, match=r"bad\.json is no file of specjax bench"):
        Benchmark.read_json(tmp_path / "bad.json")


def test_the_report_says_what_to_be_careful_about(benchmark, capsys):
    benchmark.interrupted = True
    print_report(benchmark, stderr_console())
    err = " ".join(capsys.readouterr().err.split())
    for part in (
        "6/9, from 7",
        "0.75 0.20 -",
        "in 15 of 45 runs other processes used more than 5% of the CPU time, at most 30%",
        "texts that differ from plain decoding's: other plain",
        "other: other 1.0",
        "interrupted",
        "greedy, 3 prompts of 10 to 30 tokens",
    ):
        assert part in err, part
    benchmark.records = [dataclasses.replace(r, busy_elsewhere=None, batch=2) for r in benchmark.records]
    assert not any("other processes" in note for note in notes(benchmark))
    assert any("some are in it twice: long (1)" in note for note in notes(benchmark))


@pytest.mark.parametrize("batches", ((1,), (1, 4)))
def test_a_figure_is_drawn(benchmark, tmp_path, batches):
    def copies(items, change):
        return [change(item, batch) for batch in batches for item in items]

    benchmark.arms = copies(
        benchmark.arms,
        lambda arm, batch: dataclasses.replace(arm, label=dataclasses.replace(arm.label, batch=batch)),
    )
    benchmark.records = copies(benchmark.records, lambda r, batch: dataclasses.replace(r, batch=batch))
    write_figure(benchmark, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    benchmark.records = []
    with pytest.raises(ValueError, match="nothing was measured"):
        write_figure(benchmark, tmp_path / "none.png")
