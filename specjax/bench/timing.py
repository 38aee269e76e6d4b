"""Measuring on a machine that also does other things: turns, medians with intervals, CPU time of others."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jaxlib
import numpy as np
from scipy import stats

T = TypeVar("T")

_PROC = pathlib.Path("/proc")
_CONFIDENCE = 0.95
_SHORTEST_SECONDS = 0.2  # the kernel counts CPU time in hundredths of a second
# Of the columns of /proc/stat: user, nice, system, irq, softirq, steal. Idle, waiting for disks, and guests
# (which are part of user) are not counted.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm(Generic[T]):
    """One of the things that are compared.

    Attributes:
        name: unique among the arms.
        run: does the work once and returns when the device has finished it.
    """

    name: str
    run: Callable[[], T]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Generic[T]):
    """One run of an arm.

    Attributes:
        turn: from 0. Samples of one turn were taken one right after another, so they form pairs.
        seconds: wall time of `Arm.run`.
        result: what it returned.
        busy_elsewhere: CPU time of other processes meanwhile, as a fraction of what all cores have; None
            where the platform does not tell, or too coarsely for so short a run.
    """

    turn: int
    seconds: float
    result: T
    busy_elsewhere: float | None


def interleave(
    arms: Sequence[Arm[T]],
    repeats: int,
    *,
    warmup: int = 1,
    on_turn: Callable[[dict[str, Sample[T]]], object] | None = None,
) -> dict[str, list[Sample[T]]]:
    """Runs arms in turns, so that a disturbance hits all alike, and none profits from its place in the order.

    In each turn every arm runs once; the arm that begins moves on by one from turn to turn.

    Args:
        repeats: turns, at least 1.
        warmup: how often each arm runs before that, to compile; not sampled.
        on_turn: called with the samples of each complete turn. Whoever interrupts a measurement has those.

    Raises:
        ValueError: two arms of one name, or a number of turns that makes no sense.
    """
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names):
        raise ValueError(f"the arms are named {names}; expected different names")
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats is {repeats}, warmup {warmup}; expected at least 1 and 0")
    for _ in range(warmup):
        for arm in arms:
            arm.run()
    samples: dict[str, list[Sample[T]]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % max(len(arms), 1)
        taken = {arm.name: _sample(arm, turn) for arm in (*arms[first:], *arms[:first])}
        for name, sample in taken.items():
            samples[name].append(sample)
        if on_turn is not None:
            on_turn(taken)
    return samples


def _sample(arm: Arm[T], turn: int) -> Sample[T]:
    others = others_cpu_seconds()
    begun = time.perf_counter()
    result = arm.run()
    seconds = time.perf_counter() - begun
    busy = None
    now = others_cpu_seconds() if seconds >= _SHORTEST_SECONDS else None
    if others is not None and now is not None:
        busy = max(now - others, 0.0) / seconds / (os.cpu_count() or 1)
    return Sample(turn=turn, seconds=seconds, result=result, busy_elsewhere=busy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A median and where it lies for sure enough.

    Attributes:
        confidence: probability that [low, high] covers the median of what the values were drawn from: at
            least 0.95 for 6 values or more, less for fewer (0.94 for 5, 0.75 for 3, 0 for one).
    """

    median: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        if self.low == self.high:  # a single value, or nothing that varies
            return f"{self.median:.2f}"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def median_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The median of independent values and an interval for it that assumes nothing about their law.

    From the k-th smallest to the k-th largest value, for the largest k whose coverage,

        1 - 2 P(Binomial(n, 1/2) < k),

    is at least 0.95; from the smallest to the largest where no k reaches that.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    if not n or not np.all(np.isfinite(ordered)):
        raise ValueError(f"values are {values!r}; expected one finite number or more")
    k = max(int(stats.binom.ppf((1 - _CONFIDENCE) / 2, n, 0.5)), 1)
    return Interval(
        median=float(np.median(ordered)),
        low=float(ordered[k - 1]),
        high=float(ordered[n - k]),
        confidence=max(1 - 2 * float(stats.binom.cdf(k - 1, n, 0.5)), 0.0),
    )


def paired_ratio(base: Sequence[float], other: Sequence[float]) -> Interval:
    """How many times as fast `other` is as `base`, from seconds in pairs: the median of base / other.

    Pairs were taken one right after another, so what slowed a whole turn cancels out.

    Raises:
        ValueError: the numbers of values differ, there are none, or one is not positive.
    """
    if len(base) != len(other):
        raise ValueError(f"{len(base)} base values and {len(other)} others; expected pairs")
    if not all(value > 0 for value in (*base, *other)):
        raise ValueError(f"base is {base!r}, other {other!r}; expected positive seconds")
    return median_interval(np.divide(base, other))


def others_cpu_seconds(proc: pathlib.Path = _PROC) -> float | None:
    """CPU time since boot that neither this process nor its descendants used, in seconds.

    All cores together, the time that a hypervisor gave to others included. None where there is no `/proc`.
    Only differences mean something: descendants that ended before this call count as others, unless their
    parent has waited for them.
    """
    try:
        total = (proc / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        ticks = sum(int(total[column]) for column in _BUSY_COLUMNS if column < len(total))
        return (ticks - _own_ticks(proc, os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _own_ticks(proc: pathlib.Path, root: int) -> int:
    """CPU time of a process and all its descendants, in clock ticks."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            # The second field, a name in parentheses, may hold anything.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid, parent = int(path.parent.name), int(fields[1])
        children.setdefault(parent, []).append(pid)
        used[pid] = sum(map(int, fields[11:15]))  # utime, stime, and those of children waited for
    ticks, pending = 0, [root]
    while pending:
        pid = pending.pop()
        ticks += used.get(pid, 0)
        pending += children.get(pid, [])
    return ticks


def environment() -> dict[str, Any]:
    """Where a measurement ran: versions, device, cores, and how busy the machine is."""
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cores": usable_cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
