"""Turns, intervals, and the CPU time of others."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from specjax.bench.timing import (
    Arm,
    _own_ticks,
    environment,
    interleave,
    median_interval,
    others_cpu_seconds,
    paired_ratio,
)


def test_arms_take_turns_and_the_first_place_rotates():
    order = []
    arms = [Arm(name=name, run=lambda name=name: order.append(name) or len(order)) for name in "abc"]
    turns = []
    samples = interleave(arms, 3, warmup=1, on_turn=turns.append)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert [sample.result for sample in samples["a"]] == [4, 9, 11]
    assert [sample.turn for sample in samples["b"]] == [0, 1, 2]
    assert [set(turn) for turn in turns] == [{"a", "b", "c"}] * 3


def test_an_interrupted_measurement_has_its_complete_turns():
    runs = iter(range(10))

    def run():
        if next(runs) == 5:
            raise KeyboardInterrupt
        return "done"

    turns = []
    with pytest.raises(KeyboardInterrupt):
        interleave([Arm(name="a", run=run), Arm(name="b", run=run)], 9, warmup=0, on_turn=turns.append)
    assert len(turns) == 2


def test_bad_measurements_are_refused():
    arm = Arm(name="a", run=lambda: None)
    with pytest.raises(ValueError, match="different names"):
        interleave([arm, arm], 1)
    with pytest.raises(ValueError, match="repeats is 0"):
        interleave([arm], 0)
    with pytest.raises(ValueError, match="expected one finite number"):
        median_interval([])
    with pytest.raises(ValueError, match="1 base values and 2 others"):
        paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive seconds"):
        paired_ratio([1.0], [0.0])


def test_seconds_are_wall_time():
    samples = interleave([Arm(name="nap", run=lambda: time.sleep(0.05))], 2, warmup=0)
    assert all(0.05 <= sample.seconds < 1 for sample in samples["nap"])


@pytest.mark.parametrize("n", (6, 7, 15, 40))
def test_the_interval_covers_the_median_as_often_as_it_says(n):
    rng = np.random.default_rng(n)
    intervals = [median_interval(rng.exponential(size=n)) for _ in range(2000)]
    covered = np.mean([interval.low <= np.log(2) <= interval.high for interval in intervals])
    confidence = intervals[0].confidence
    assert 0.95 <= confidence < 1
    assert covered == pytest.approx(confidence, abs=0.02)
    assert all(interval.low <= interval.median <= interval.high for interval in intervals)


def test_few_values_span_the_interval_and_it_says_what_that_is_worth():
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.low, interval.median, interval.high) == (1.0, 2.0, 3.0)
    assert interval.confidence == 0.75
    assert str(interval) == "2.00 (1.00 to 3.00)"
    assert median_interval([5.0]).confidence == 0.0
    assert str(median_interval([5.0])) == "5.00"


def test_a_ratio_of_pairs_does_not_see_what_slowed_both():
    slow = np.array([1.0, 7.0, 2.0, 5.0, 1.0, 3.0, 1.5])
    ratio = paired_ratio(list(2.0 * slow), list(slow))
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)


def stat(pid, parent, ticks):
    return f"{pid} (a ) name) S {parent} " + "0 " * 9 + f"{ticks} 1 0 0 20 0"


def test_own_and_childrens_cpu_time_is_not_that_of_others(tmp_path):
    own = os.getpid()
    (tmp_path / "stat").write_text("cpu  1000 20 300 9999 50 4 5 6 77 0\ncpu0 1 1 1 1\n")
    for pid, parent, ticks in ((own, 1, 99), (700001, own, 50), (700002, 700001, 25), (700003, 1, 400)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat(pid, parent, ticks))
    busy, mine = 1000 + 20 + 300 + 4 + 5 + 6, 99 + 50 + 25 + 3
    assert others_cpu_seconds(tmp_path) == (busy - mine) / os.sysconf("SC_CLK_TCK")


def test_without_proc_nobody_knows(tmp_path):
    assert others_cpu_seconds(tmp_path / "none") is None


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs /proc")
def test_a_child_that_works_is_seen_while_it_runs_and_afterwards():
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = _own_ticks(pathlib.Path("/proc"), os.getpid())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", spin], **pipes) as child:
        child.stdout.readline()
        running = _own_ticks(pathlib.Path("/proc"), os.getpid()) - before
        child.communicate(b"\n")
    ended = _own_ticks(pathlib.Path("/proc"), os.getpid()) - before
    assert min(running, ended) >= 0.4 * os.sysconf("SC_CLK_TCK")


def test_the_environment_is_plain_data():
    found = json.loads(json.dumps(environment()))
    assert {"jax", "jaxlib", "python", "platform", "device", "cores", "load"} <= set(found)
