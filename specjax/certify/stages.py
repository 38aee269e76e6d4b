"""The order in which an integration is checked, and the stages that look at more than laws and texts."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.certify.certificate import Certificate, Check
from specjax.certify.laws import STAGE as LAW
from specjax.certify.laws import check_laws, check_proposals
from specjax.certify.pair import Subject
from specjax.certify.texts import check_coupled, check_drift, check_frequencies, check_greedy, check_rows
from specjax.decoding import DecodeConfig, FinishReason, Stop
from specjax.drafts import Draft, NoDraft
from specjax.sampling import Processor, Sampling

SHORT, GREEDY_STAGE, LATENCY, BATCH = "short greedy", "greedy", "latency", "batch"
LONG, CANCELLATION = "long context", "cancellation and memory"
STAGES = (SHORT, GREEDY_STAGE, LAW, LATENCY, BATCH, LONG, CANCELLATION)
_SHORT_TOKENS, _LONG_TOKENS = 8, 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is drawn and decoded.

    Attributes:
        contexts: real contexts for each draft, and `draws` of the rule in each.
        samples: of whole texts for each prompt, and how many tokens of them.
        level: probability of a false alarm in one test.

    Raises:
        ValueError: nothing could be found with so little, or seeds would not suffice for so much.
    """

    contexts: int = 32
    draws: int = 2048
    samples: int = 24
    sample_tokens: int = 3
    level: float = 1e-6

    def __post_init__(self) -> None:
        limits = {"contexts": 1024, "draws": 1 << 20, "samples": 1 << 16, "sample_tokens": 1 << 20}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 to {most:,}")
        if not 0 < self.level < 1:
            raise ValueError(f"level is {self.level}; expected between 0 and 1")


def certify(
    target: Any,
    prompts: Sequence[Sequence[int]],
    drafts: Mapping[str, Draft],
    *,
    config: DecodeConfig | None = None,
    sampling: Sampling | None = None,
    draft_sampling: Sampling | None = None,
    stop: Stop | None = None,
    processors: tuple[Processor, ...] = (),
    effort: Effort | None = None,
    stages: bool = False,
    progress: Callable[[str], None] = lambda message: None,
) -> Certificate:
    """Checks on a pair of models, real prompts and real settings that speculation changes nothing.

    Greedy and coupled texts are compared with plain decoding's token for token, at equal compiled shapes;
    greedy texts of another width may differ at near-ties, which are measured. What the compiled rule draws
    from the pair's own laws is tested against those laws, and acceptance against the rule's formula. Logits
    of verified rows are compared with a fresh pass, and frequencies in sampled texts with plain decoding's.

    Args:
        target: a `specjax.models.ScoringModel`.
        prompts: token ids, one list for each prompt; they are decoded as one batch.
        drafts: by name.
        config: as in production; gamma at least 1.
        sampling: as in production, with a temperature above 0. The default samples with temperature 1.
            Greedy texts are decoded with the same penalties and bans.
        draft_sampling, stop, processors: as in production, see `specjax.generate`.
        stages: go through all `STAGES`, and stop after the first in which a check fails. Otherwise the
            exactness checks are all made.
        progress: is told what is about to happen.

    Raises:
        ValueError: an argument makes no sense; the message names it.
    """
    config, effort = config or DecodeConfig(), effort or Effort()
    sampling = sampling or Sampling(temperature=1.0)
    if not prompts or not all(len(ids) for ids in prompts):
        raise ValueError(f"prompts has {len(prompts)} rows; expected at least one, and none of them empty")
    if not drafts:
        raise ValueError("drafts is empty; expected at least one")
    if config.gamma < 1:
        raise ValueError(f"config.gamma is {config.gamma}; expected at least 1")
    if not np.all(np.asarray(sampling.temperature) > 0):
        raise ValueError(
            f"sampling.temperature is {sampling.temperature}; expected above 0, since greedy texts are "
            "checked in any case"
        )
    subject = Subject.of(
        target,
        prompts,
        config,
        sampling,
        draft_sampling=draft_sampling,
        stop=stop or Stop(),
        processors=processors,
    )
    settings = {
        "prompts": len(prompts),
        "longest_prompt": int(subject.lengths.max()),
        "drafts": list(drafts),
        "config": dataclasses.asdict(config),
        "sampling": {
            field.name: _written(getattr(sampling, field.name)) for field in dataclasses.fields(sampling)
        },
        "draft_sampling": _written(draft_sampling),
        "stop": _written(stop),
        "processors": [_written(processor) for processor in processors],
        "effort": dataclasses.asdict(effort),
        "device": str(jax.devices()[0].device_kind),
        "jax": jax.__version__,
    }
    plan = _plan(subject, drafts, effort)
    names = STAGES if stages else (GREEDY_STAGE, LAW)
    checks: list[Check] = []
    skipped: tuple[str, ...] = ()
    for index, name in enumerate(names):
        for step, make in plan[name]:
            progress(f"{name}: {step}")
            checks += make()
        if stages and any(check.passed is False for check in checks):
            skipped = names[index + 1 :]
            break
    return Certificate(settings=settings, checks=tuple(checks), skipped=skipped)


def _written(value: Any) -> Any:
    """For JSON: numbers and lists of them, anything else in words."""
    if value is None or isinstance(value, str):
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return repr(value)
    return array.tolist() if array.dtype.kind in "biuf" else repr(value)


Step = tuple[str, Callable[[], Iterator[Check]]]


def _plan(subject: Subject, drafts: Mapping[str, Draft], effort: Effort) -> dict[str, list[Step]]:
    """What each stage does, a step at a time."""
    count = len(subject.lengths)
    few = subject.rows(np.arange(min(count, 2)))
    # What a row must not do to its neighbours needs one.
    several = subject.rows(np.arange(count) if count > 1 else np.zeros(2, int))

    def laws(name: str) -> Iterator[Check]:
        draft = drafts[name]
        yield from check_laws(
            subject, name, draft, contexts=effort.contexts, draws=effort.draws, level=effort.level
        )
        yield from check_proposals(
            subject, name, draft, seeds=max(effort.samples // 4, 1), level=effort.level
        )

    def frequencies() -> Iterator[Check]:
        return check_frequencies(
            subject,
            drafts,
            stage=LAW,
            samples=effort.samples,
            # So many that a whole block and the token after it fit in.
            new_tokens=min(
                max(effort.sample_tokens, subject.config.gamma + 2), subject.config.max_new_tokens
            ),
            level=effort.level,
        )

    return {
        SHORT: [
            (
                f"{_SHORT_TOKENS} tokens of two prompts",
                lambda: check_greedy(few, drafts, stage=SHORT, new_tokens=_SHORT_TOKENS),
            )
        ],
        GREEDY_STAGE: [
            ("texts of all prompts", lambda: check_greedy(subject, drafts, stage=GREEDY_STAGE)),
            ("logits of verified rows", lambda: check_rows(subject, drafts, stage=GREEDY_STAGE)),
            ("texts of a self-draft", lambda: check_drift(subject, stage=GREEDY_STAGE, level=effort.level)),
        ],
        LAW: [
            *((f"the rule's law, draft {name}", lambda name=name: laws(name)) for name in drafts),
            ("coupled samples", lambda: check_coupled(subject, drafts, stage=LAW)),
            ("frequencies in samples", frequencies),
        ],
        LATENCY: [("seconds of a round", lambda: check_latency(subject, drafts))],
        BATCH: [("rows in another order", lambda: check_batch(several, drafts))],
        LONG: [("a long prompt", lambda: check_long_context(subject, drafts, new_tokens=_SHORT_TOKENS))],
        CANCELLATION: [("interrupted rows, repeated calls", lambda: check_cancellation(several, drafts))],
    }


def check_latency(subject: Subject, drafts: Mapping[str, Draft]) -> Iterator[Check]:
    """A round costs no more than three times as many plain steps as it scores tokens.

    A draft as large as the target takes one for each token, and scoring at worst as many again.

    That is not a speed-up. It finds programs that compile anew, copy caches or wait for the host.
    """
    plain, plain_rounds, plain_tokens = _seconds(subject, NoDraft())
    for name, draft in drafts.items():
        seconds, rounds, tokens = _seconds(subject, draft)
        steps = (seconds / rounds) / (plain / plain_rounds)
        allowed = 3 * (subject.config.gamma + 1)
        ratio = (tokens / seconds) / (plain_tokens / plain)
        yield Check(
            stage=LATENCY,
            name=f"a round takes less than {allowed} plain steps",
            draft=name,
            passed=steps < allowed,
            found=f"{steps:.2f} steps, {tokens / rounds:.2f} tokens; {ratio:.2f} times plain decoding",
            values={"steps": steps, "ratio": ratio},
        )


def _seconds(subject: Subject, draft: Draft) -> tuple[float, int, int]:
    """Seconds of all rounds after prefill, rounds, and tokens of the row that took most; best of three."""
    decoder = subject.decoder(draft)
    best = float("inf")
    for _ in range(3):
        state = jax.block_until_ready(subject.start(decoder, subject.greedy))
        start = time.perf_counter()
        state = jax.block_until_ready(decoder.run_rounds(state))
        best = min(best, time.perf_counter() - start)
    row = int(np.argmax(state.stats.rounds))
    return best, max(int(state.stats.rounds[row]), 1), int(state.stats.emitted[row])


def check_batch(subject: Subject, drafts: Mapping[str, Draft]) -> Iterator[Check]:
    """Rows of a batch in another order give the same tokens, with the seeds that belong to them."""
    count = len(subject.lengths)
    order = np.roll(np.arange(count), 1)
    seeds = np.arange(count, dtype=np.uint32)
    subject = dataclasses.replace(subject, sampling=dataclasses.replace(subject.sampling, seed=seeds))
    moved = subject.rows(order)
    for name, draft in drafts.items():
        out = subject.generate(draft, subject.sampling)
        other = moved.generate(draft, moved.sampling)
        same = np.all(out.tokens[order] == other.tokens, axis=1)
        yield Check(
            stage=BATCH,
            name="a row's samples do not depend on its place or its neighbours",
            draft=name,
            passed=bool(np.all(same)),
            found=f"{int(same.sum())} of {count} rows equal",
        )


def check_long_context(subject: Subject, drafts: Mapping[str, Draft], *, new_tokens: int) -> Iterator[Check]:
    """Greedy text after a prompt that is repeated to half of the context."""
    context = getattr(subject.target, "context_length", None) or 2 * _LONG_TOKENS
    length = min(context // 2, _LONG_TOKENS)
    prompt = np.resize(subject.prompts[0, : subject.lengths[0]], length)[None]
    long = dataclasses.replace(
        subject.rows(np.zeros(1, int)),
        prompts=prompt,
        lengths=np.array([length], np.int32),
        config=dataclasses.replace(subject.config, capacity=None),
    )
    yield from check_greedy(long, drafts, stage=LONG, new_tokens=new_tokens)


def check_cancellation(subject: Subject, drafts: Mapping[str, Draft]) -> Iterator[Check]:
    """A row that is cancelled between rounds disturbs no other; repeated calls leave no memory behind."""
    cancelled = int(FinishReason.CANCELLED)
    for name, draft in drafts.items():
        decoder = subject.decoder(draft, verify_widths=())
        whole = subject.generate(draft, subject.sampling)
        state = decoder.run_rounds(subject.start(decoder, subject.sampling), 1)
        reasons = state.finish_reason.at[0].set(cancelled)
        kept = int(state.length[0] - state.prompt_length[0])
        state = decoder.run_rounds(dataclasses.replace(state, finish_reason=reasons))
        out = jax.device_get(decoder.result(state))
        others = bool(np.all(out.tokens[1:] == whole.tokens[1:]))
        stayed = int(out.lengths[0]) == kept and bool(np.all(out.tokens[0, :kept] == whole.tokens[0, :kept]))
        del state
        yield Check(
            stage=CANCELLATION,
            name="a cancelled row keeps its text and disturbs no other",
            draft=name,
            passed=others and stayed,
            found=f"other rows {'equal' if others else 'differ'}, its text {'stays' if stayed else 'moved'}",
        )
        sizes = []
        for _ in range(3):
            subject.generate(draft, subject.sampling)
            gc.collect()
            sizes.append(sum(array.nbytes for array in jax.live_arrays()))
        yield Check(
            stage=CANCELLATION,
            name="repeated calls leave no memory behind",
            draft=name,
            passed=sizes[-1] <= sizes[0],
            found=f"{sizes[-1] - sizes[0]:+,} bytes after {len(sizes)} calls",
            values={"bytes": sizes},
        )
