"""Tuning: measures the parts of a round, predicts what each setting gains, and measures that, too."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.bench.timing import Arm, Sample, environment, interleave, paired_ratio
from specjax.decoding import DecodeConfig, Decoder
from specjax.drafts import Draft, NoDraft
from specjax.sampling import Sampling
from specjax.tune.components import Bench, Loop, measure
from specjax.tune.cost import RoundTime, acceptance
from specjax.tune.setting import Group, Setting, check_settings, groups, typical
from specjax.tune.trace import Trace, batch_widths, counters, record
from specjax.tune.tuning import Components, Outcome, Tuning

Progress = Callable[[str], None]
# What a draft proposes, and so its traces, depends on these; not on the batch.
_Key = tuple[str, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        repeats: turns in which every setting decodes all prompts; 0: predictions alone.
        component_repeats: turns in which every part of a round is timed.
        component_seconds: about how long one part is timed in a turn.
    """

    repeats: int = 5
    component_repeats: int = 11
    component_seconds: float = 0.3

    def __post_init__(self) -> None:
        if self.repeats < 0 or self.component_repeats < 1 or not self.component_seconds > 0:
            raise ValueError(f"{self}; expected repeats of at least 0, and components that are measured")


def tune(
    target: Any,
    prompts: Sequence[Sequence[int]],
    drafts: Mapping[str, Draft],
    settings: Sequence[Setting],
    *,
    prompt_width: int | None = None,
    config: DecodeConfig | None = None,
    sampling: Sampling | None = None,
    effort: Effort | None = None,
    progress: Progress = lambda message: None,
) -> Tuning:
    """Predicts and measures the speed-up of settings on one's own prompts, on this device.

    For each batch size the steps of target and draft and whole plain rounds are timed in compiled loops, in
    turns, at the length that typical prompts reach half-way. What a draft proposes and how much of it is
    accepted is recorded round by round in one real run. The cost model (`specjax.tune.cost`) makes a
    prediction of both; then the settings and plain decoding take turns on the prompts. Decode time only.

    Ctrl-C ends it early, and so does any error, with what was found until then.

    Args:
        target: a `specjax.models.ScoringModel`.
        prompts: token ids of each prompt.
        drafts: by the names that settings use.
        settings: what is compared. A batch size larger than the number of prompts repeats them.
        prompt_width: tokens that prompts are padded to; the longest by default.
        config: as in production. Gamma and verify widths are those of the settings.
        sampling: as in production; one seed. Greedy by default.
        progress: is told what is about to happen.

    Raises:
        ValueError: an argument makes no sense; the message names it. Whatever goes wrong before anything is
            found.
    """
    check_settings(settings, drafts)
    if not prompts or not all(len(ids) for ids in prompts):
        raise ValueError(f"prompts has {len(prompts)} rows; expected at least one, and none of them empty")
    config, sampling, effort = config or DecodeConfig(), sampling or Sampling(), effort or Effort()
    if np.ndim(sampling.seed):
        raise ValueError("sampling.seed has a value for each row; expected one, as prompts change their rows")
    if config.max_new_tokens < 2:
        raise ValueError(f"config.max_new_tokens is {config.max_new_tokens}; expected at least 2")
    width = prompt_width or max(map(len, prompts))
    run = _Run(target, prompts, drafts, width, config, sampling, effort, progress)
    interrupted, failure = False, None
    try:
        for batch in dict.fromkeys(setting.batch for setting in settings):
            run.add_batch(batch, [setting for setting in settings if setting.batch == batch])
    except KeyboardInterrupt:
        interrupted = True
    except Exception as error:
        # Memory that runs out at the second batch size must not cost what was found at the first.
        if not run.outcomes:
            raise
        failure = str(error) or type(error).__name__
    subject = {
        "prompts": len(prompts),
        "prompt_width": width,
        "prompt_lengths": [len(ids) for ids in prompts],
        "max_new_tokens": config.max_new_tokens,
        "temperature": np.asarray(sampling.temperature).tolist(),
        "rule": config.rule,
        "effort": dataclasses.asdict(effort),
    }
    return Tuning(
        environment=environment(),
        subject=subject,
        components=tuple(run.components),
        outcomes=tuple(run.outcomes),
        busy_elsewhere=run.busy_elsewhere,
        interrupted=interrupted,
        error=failure,
    )


@dataclasses.dataclass(frozen=True)
class _Decoded:
    """One way through all prompts: seconds of its rounds, and their number, batch by batch added up."""

    seconds: float
    rounds: int


class _Run:
    """A tuning in the making."""

    def __init__(
        self,
        target: Any,
        prompts: Sequence[Sequence[int]],
        drafts: Mapping[str, Draft],
        prompt_width: int,
        config: DecodeConfig,
        sampling: Sampling,
        effort: Effort,
        progress: Progress,
    ) -> None:
        self.components: list[Components] = []
        self.outcomes: list[Outcome] = []
        self.busy_elsewhere: float | None = None
        self._target = target
        self._prompts = prompts
        self._drafts = drafts
        self._prompt_width = prompt_width
        self._config = config
        self._sampling = sampling
        self._effort = effort
        self._progress = progress
        self._traces: dict[_Key, list[Trace]] = {}

    def add_batch(self, batch: int, settings: Sequence[Setting]) -> None:
        """Predicts and measures the settings of one batch size. What an interrupt leaves is kept."""
        batches = groups(self._prompts, batch, self._prompt_width)
        for setting in settings:
            self._trace(setting, settings, batches)
        self._progress(f"batch {batch}: timing the parts of a round")
        parts = self._time_parts(batch, settings, typical(batches))
        self.components.append(parts)
        first = len(self.outcomes)
        self.outcomes += [self._predict(setting, parts, batches) for setting in settings]
        if not self._effort.repeats:
            return
        turns: list[dict[str, Sample[_Decoded]]] = []
        try:
            self._progress(f"batch {batch}: measuring {len(settings)} settings and plain decoding in turns")
            interleave(self._arms(settings, batches), self._effort.repeats, on_turn=turns.append)
        finally:
            if turns:
                self.outcomes[first:] = [_measured(outcome, turns) for outcome in self.outcomes[first:]]
                busy = [sample.busy_elsewhere for turn in turns for sample in turn.values()]
                self.busy_elsewhere = max(filter(None, (self.busy_elsewhere, *busy)), default=None)

    def _decoder(self, setting: Setting) -> Decoder:
        return Decoder(self._target, self._drafts[setting.draft], setting.config(self._config))

    def _trace(self, setting: Setting, settings: Sequence[Setting], batches: Sequence[Group]) -> None:
        """Finds the rounds of every prompt, by a run or from the run of a longer draft."""
        if (key := _key(setting)) in self._traces:
            return
        longest = max((s for s in settings if _alike(s, setting)), key=lambda s: s.gamma)
        # With several widths the draft's length depends on gamma itself: such traces cannot be cut down.
        source = setting if setting.verify_widths else longest
        if _key(source) not in self._traces:
            self._progress(f"{source}: recording what is accepted")
            decoder = self._decoder(source)
            rows: dict[int, Trace] = {}
            for group in batches:
                traces = record(decoder, group.start(decoder, self._sampling))
                rows |= zip(group.indices, traces, strict=True)
            self._traces[_key(source)] = [rows[index] for index in range(len(self._prompts))]
        whole = self._traces[_key(source)]
        self._traces[key] = [trace.replay(setting.gamma, source.gamma) for trace in whole]

    def _time_parts(self, batch: int, settings: Sequence[Setting], group: Group) -> Components:
        gammas = sorted({setting.gamma for setting in settings})
        widths = sorted({width for setting in settings for width in setting.widths})
        by_draft: dict[str, list[int]] = {}
        loops: dict[str, Loop] = {}
        for name in {setting.draft: None for setting in settings}:
            own = [setting for setting in settings if setting.draft == name]
            bench = self._bench(max(own, key=lambda setting: setting.gamma), group)
            by_draft[name] = sorted({setting.gamma for setting in own})
            loops |= {f"draft {name} {gamma}": bench.proposing(gamma) for gamma in by_draft[name]}
            if len(by_draft) == 1:  # the rest is the same with every draft
                loops |= {f"verify {width}": bench.scoring(width) for width in widths}
                loops |= {
                    f"round {width}": bench.plain_round(width) for width in (1, *(g + 1 for g in gammas))
                }
        effort = self._effort
        seconds = measure(loops, repeats=effort.component_repeats, seconds=effort.component_seconds)

        plain = np.array(seconds["round 1"])

        def median(values: np.ndarray | list[float]) -> float:
            # Relative to plain decoding in the same turn: what slowed a whole turn cancels out.
            return float(np.median(np.divide(values, plain)) * np.median(plain))

        def overhead(gamma: int) -> float:
            # Noise can make a small difference negative.
            rest = np.subtract(seconds[f"round {gamma + 1}"], seconds[f"verify {gamma + 1}"])
            return max(median(rest), 0.0)

        return Components(
            batch=batch,
            plain=median(plain),
            verify={width: median(seconds[f"verify {width}"]) for width in widths},
            overhead={gamma: overhead(gamma) for gamma in gammas},
            draft={
                name: {gamma: median(seconds[f"draft {name} {gamma}"]) for gamma in own}
                for name, own in by_draft.items()
            },
        )

    def _bench(self, setting: Setting, group: Group) -> Bench:
        """A batch half-way through its text."""
        decoder = self._decoder(setting)
        rounds = min(self._traces[_key(setting)][index].rounds for index in group.indices)
        state = decoder.run_rounds(group.start(decoder, self._sampling), rounds // 2)
        return Bench(self._target, decoder.draft, decoder.config, state)

    def _predict(self, setting: Setting, parts: Components, batches: Sequence[Group]) -> Outcome:
        traces = self._traces[_key(setting)]
        widths = [
            width
            for group in batches
            for width in batch_widths([traces[index] for index in group.indices], setting.widths)
        ]
        drafted_at, accepted_at, rounds = counters(traces, setting.gamma)
        rates = acceptance(drafted_at, accepted_at, rounds)
        return Outcome(
            setting=setting,
            time=RoundTime(
                draft=parts.draft[setting.draft][setting.gamma],
                verify=float(np.mean([parts.verify[width] for width in widths])),
                overhead=parts.overhead[setting.gamma],
            ),
            tokens=len(batches) * self._config.max_new_tokens / len(widths),
            acceptance=tuple(None if np.isnan(rate) else float(rate) for rate in rates),
            plain=parts.plain,
        )

    def _arms(self, settings: Sequence[Setting], batches: Sequence[Group]) -> list[Arm[_Decoded]]:
        def arm(name: str, decoder: Decoder) -> Arm[_Decoded]:
            return Arm(name=name, run=lambda: self._decode(decoder, batches))

        plain = Decoder(self._target, NoDraft(), dataclasses.replace(self._config, verify_widths=()))
        return [arm("plain", plain), *(arm(str(s), self._decoder(s)) for s in settings)]

    def _decode(self, decoder: Decoder, batches: Sequence[Group]) -> _Decoded:
        seconds, rounds = 0.0, 0
        for group in batches:
            state = jax.block_until_ready(group.start(decoder, self._sampling))
            begun = time.perf_counter()
            state = jax.block_until_ready(decoder.run_rounds(state))
            seconds += time.perf_counter() - begun
            rounds += int(np.max(np.asarray(state.stats.rounds)))
        return _Decoded(seconds, rounds)


def _key(setting: Setting) -> _Key:
    return setting.draft, setting.gamma, setting.verify_widths


def _alike(setting: Setting, other: Setting) -> bool:
    return (setting.draft, setting.verify_widths) == (other.draft, other.verify_widths)


def _measured(outcome: Outcome, turns: Sequence[Mapping[str, Sample[_Decoded]]]) -> Outcome:
    """The outcome with the speed-up of these turns, each of which holds every arm."""
    plain = [turn["plain"].result for turn in turns]
    own = [turn[str(outcome.setting)].result for turn in turns]
    return dataclasses.replace(
        outcome,
        measured=paired_ratio([d.seconds for d in plain], [d.seconds for d in own]),
        measured_tokens=plain[0].rounds / own[0].rounds,
        measured_round=float(np.median([d.seconds / d.rounds for d in own])),
        measured_plain=float(np.median([d.seconds / d.rounds for d in plain])),
    )
