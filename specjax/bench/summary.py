"""From records to the figures that are reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from specjax.bench.arms import Label
from specjax.bench.record import Benchmark, MeasuredArm, Record
from specjax.bench.timing import Interval

_RESAMPLES = 2000
_CONFIDENCE = 0.95
PERCENTILES = (50, 95, 99)
OVERALL = "all"

Seconds = Callable[[Record], float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """An arm on one task, or on all of them.

    Attributes:
        arm: what was measured. task: its name, or `OVERALL`.
        decode_rate, total_rate: tokens a second of all rows together, without and with the prefill: all
            tokens, over the sum of each batch's median seconds.
        decode_speedup, total_speedup: how many times as fast as plain decoding at its fastest width.
        first_token_seconds: median.
        latencies: seconds of a request with its prefill at `PERCENTILES`; all requests of a batch take as
            long as the batch.
        tokens_per_round: mean of rows; None for peers.
        acceptance: how often a live draft token was accepted, at each position; None where none was live.
        round_seconds: of one round. verify_seconds: of plain decoding that scores as many tokens a round.
        draft_seconds: what a round takes beyond `verify_seconds`; where rounds score fewer tokens than
            gamma + 1 that difference says nothing, and it is one proposal on its own.
        compared, differing: rows whose text was compared with that of the label's reference, and how many
            differ. first_difference: the first token that does.
        requests: batches. repeats: of the batch with the fewest.
    """

    arm: MeasuredArm
    task: str
    decode_rate: float | None
    total_rate: float
    decode_speedup: Interval | None
    total_speedup: Interval | None
    first_token_seconds: float | None
    latencies: tuple[float, ...]
    tokens_per_round: float | None
    acceptance: list[float | None]
    round_seconds: float | None
    verify_seconds: float | None
    draft_seconds: float | None
    compared: int
    differing: int
    first_difference: int | None
    requests: int
    repeats: int

    @property
    def label(self) -> Label:
        return self.arm.label


def summarize(benchmark: Benchmark, batch: int, task: str = OVERALL) -> list[Row]:
    """A row for each arm of a batch size, on one task or on all."""
    chosen = [
        record for record in benchmark.records if record.batch == batch and task in (OVERALL, record.task)
    ]
    arms = [arm for arm in benchmark.arms_of(batch) if any(r.arm == arm.label.name for r in chosen)]
    base = fastest_plain(benchmark, batch)
    of_arm = {arm.label.name: [r for r in chosen if r.arm == arm.label.name] for arm in arms}
    rounds = {arm.label.name: _round_seconds(of_arm[arm.label.name]) for arm in arms}
    verify = {arm.label.gamma: rounds[arm.label.name] for arm in arms if arm.label.kind == "plain"}
    return [_row(arm, task, of_arm[arm.label.name], of_arm.get(base or "", []), verify) for arm in arms]


def fastest_plain(benchmark: Benchmark, batch: int) -> str | None:
    """The plain arm with the highest decode rate over all tasks: what speed-ups are against."""
    plain = [arm.label.name for arm in benchmark.arms_of(batch) if arm.label.kind == "plain"]
    of_batch = [record for record in benchmark.records if record.batch == batch]
    rates = {name: _rate([r for r in of_batch if r.arm == name], _decode_seconds) for name in plain}
    return max(plain, key=lambda name: rates[name] or 0.0, default=None)


def speedup(tasks: Sequence[Sequence[np.ndarray]], seed: int = 0) -> Interval:
    """How many times as fast, over several tasks, from ratios of paired times.

    The median over the repeats of a request, then the geometric mean over the requests of a task, then over
    tasks, so that no task counts for its number or length of requests. The interval is a bootstrap's:
    requests are drawn anew within each task and repeats within each request, and the middle 95% of what comes
    out is taken. With a single request for each task it speaks of these requests alone, and with few of them
    it is too narrow for others.

    Args:
        tasks: for each task, for each request, the ratios float[R] of its repeats.
    """
    rng = np.random.default_rng(seed)
    point = np.mean([np.mean([np.log(np.median(r)) for r in requests]) for requests in tasks])
    resampled = np.zeros(_RESAMPLES)
    for requests in tasks:
        # [requests, resamples]: what each request gives when its repeats are drawn anew.
        medians = np.stack(
            [np.median(rng.choice(ratios, (_RESAMPLES, len(ratios))), axis=1) for ratios in requests]
        )
        chosen = rng.integers(len(requests), size=medians.shape)
        resampled += np.log(np.take_along_axis(medians, chosen, axis=0)).mean(axis=0) / len(tasks)
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Interval(
        median=float(np.exp(point)), low=float(np.exp(low)), high=float(np.exp(high)), confidence=_CONFIDENCE
    )


def _row(
    arm: MeasuredArm, task: str, records: list[Record], base: list[Record], verify: dict[int, float | None]
) -> Row:
    label = arm.label
    firsts = [r.first_token_seconds for r in records if r.first_token_seconds is not None]
    row_rounds = sum(record.row_rounds for record in records)
    differences = [r.first_difference for r in records if r.first_difference is not None]
    round_seconds = _round_seconds(records)
    verify_seconds = verify.get(label.gamma) if label.kind == "draft" else None
    draft_seconds = arm.facts.propose_seconds
    if draft_seconds is None and round_seconds is not None and verify_seconds is not None:
        draft_seconds = round_seconds - verify_seconds
    latencies = np.percentile([record.total_seconds for record in records], PERCENTILES)
    total_rate = _rate(records, _total_seconds)
    assert total_rate is not None
    return Row(
        arm=arm,
        task=task,
        decode_rate=_rate(records, _decode_seconds),
        total_rate=total_rate,
        decode_speedup=_speedup(base, records, _seconds_per_token),
        total_speedup=_speedup(base, records, _total_seconds),
        first_token_seconds=float(np.median(firsts)) if firsts else None,
        latencies=tuple(map(float, latencies)),
        tokens_per_round=sum(record.tokens for record in records) / row_rounds if row_rounds else None,
        acceptance=_acceptance(records),
        round_seconds=round_seconds,
        verify_seconds=verify_seconds,
        draft_seconds=draft_seconds,
        compared=sum(record.compared for record in records),
        differing=sum(record.differing for record in records),
        first_difference=min(differences, default=None),
        requests=len(_by_request(records)),
        repeats=min(map(len, _by_request(records).values())),
    )


def _total_seconds(record: Record) -> float | None:
    return record.total_seconds


def _decode_seconds(record: Record) -> float | None:
    return record.decode_seconds


def _seconds_per_token(record: Record) -> float | None:
    """Decode time of a token: peers' decode times are about one token less."""
    return None if record.decode_seconds is None else record.decode_seconds / record.decode_tokens


def _by_request(records: Iterable[Record]) -> dict[tuple[str, int], dict[int, Record]]:
    """Records by task and index, then by turn."""
    requests: dict[tuple[str, int], dict[int, Record]] = {}
    for record in records:
        requests.setdefault((record.task, record.index), {})[record.turn] = record
    return requests


def _rate(records: list[Record], seconds: Seconds) -> float | None:
    """Tokens a second: all tokens, over the sum of the median times of the requests."""
    tokens, total = 0, 0.0
    for turns in _by_request(records).values():
        values = [value for record in turns.values() if (value := seconds(record)) is not None]
        if len(values) < len(turns):
            return None
        one = next(iter(turns.values()))
        tokens += one.decode_tokens if seconds is _decode_seconds else one.tokens
        total += float(np.median(values))
    return tokens / total if total else None


def _speedup(base: list[Record], records: list[Record], seconds: Seconds) -> Interval | None:
    """Of `records` over `base`, by pairs of one turn; None where a time is unknown."""
    others = _by_request(records)
    tasks: dict[str, list[np.ndarray]] = {}
    for key, turns in _by_request(base).items():
        pairs = [(seconds(turns[t]), seconds(others[key][t])) for t in turns if t in others.get(key, {})]
        ratios = [own / other for own, other in pairs if own is not None and other]
        if ratios:
            tasks.setdefault(key[0], []).append(np.array(ratios))
    return speedup(list(tasks.values())) if tasks else None


def _round_seconds(records: list[Record]) -> float | None:
    """Median of decode time over rounds."""
    values = [r.decode_seconds / r.rounds for r in records if r.decode_seconds is not None and r.rounds]
    return float(np.median(values)) if values else None


def _acceptance(records: list[Record]) -> list[float | None]:
    if not any(any(record.drafted_at) for record in records):
        return []
    drafted = np.sum([record.drafted_at for record in records], axis=0)
    accepted = np.sum([record.accepted_at for record in records], axis=0)
    return [float(a / d) if d else None for d, a in zip(drafted, accepted, strict=True)]
