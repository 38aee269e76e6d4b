"""Whether whole texts are those of plain decoding: greedy, coupled, and by frequencies where sampled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from specjax.certify.certificate import Check
from specjax.certify.evidence import ChiSquare, distance, homogeneous, noise_floor
from specjax.certify.pair import Subject, self_draft
from specjax.decoding import FinishReason, GenerateResult, Stats, Stop
from specjax.drafts import Draft, NoDraft
from specjax.sampling import Sampling
from specjax.testing import logit_tolerance

_NEAR_TIE = 4.0  # times the measured noise between two shapes
_ROUNDS_BEFORE = 3  # the round whose verified rows are looked at


def check_greedy(
    subject: Subject, drafts: Mapping[str, Draft], *, stage: str, new_tokens: int | None = None
) -> Iterator[Check]:
    """Token for token at equal width; at another width, that first differences are near-ties."""
    if new_tokens is not None:
        subject = subject.brief(new_tokens)
    plain_of = functools.cache(lambda width: subject.plain(subject.greedy, width=width))
    for name, draft in drafts.items():
        out = subject.generate(draft, subject.greedy)
        plain = plain_of(draft.slots(subject.config.gamma))
        yield _equal_texts(stage, "greedy text is plain decoding's, at equal width", name, out, plain)
    yield _audit_widths(subject, stage)


def check_coupled(subject: Subject, drafts: Mapping[str, Draft], *, stage: str) -> Iterator[Check]:
    """Under the coupled rule sampled text is plain decoding's for every draft and gamma, at equal width."""
    first = dict(list(drafts.items())[:1])
    # Most of this check is compiling, so the other gamma is tried with one draft.
    for gamma, some in ((subject.config.gamma, drafts), (1 if subject.config.gamma > 1 else 2, first)):
        changes = {"gamma": gamma, "rule": "coupled"}
        plain_of = functools.cache(functools.partial(subject.plain, subject.sampling, **changes))
        for name, draft in some.items():
            out = subject.generate(draft, subject.sampling, **changes)
            promise = f"coupled samples are plain decoding's, gamma {gamma}"
            yield _equal_texts(stage, promise, name, out, plain_of(width=draft.slots(gamma)))


def check_rows(subject: Subject, drafts: Mapping[str, Draft], *, stage: str) -> Iterator[Check]:
    """Logits of verified rows against a fresh pass over the same text, after some rounds."""
    for name, draft in drafts.items():
        decoder = subject.decoder(draft)
        state = subject.start(decoder, subject.greedy)
        for _ in range(_ROUNDS_BEFORE):
            later = decoder.run_rounds(jax.tree.map(jnp.copy, state), 1)
            if not np.any(np.asarray(later.running)):
                break
            state = later
        scored = jax.device_get(decoder.score(state))
        lengths = np.asarray(state.length)
        drafted = scored.proposal.tokens
        gamma = drafted.shape[1]
        texts = np.zeros((len(lengths), lengths.max() + gamma), np.int32)
        for row, (text, length) in enumerate(zip(np.asarray(state.tokens), lengths, strict=True)):
            texts[row, : length + gamma] = [*text[:length], *drafted[row]]
        fresh = subject.teacher_forced(texts, lengths - 1, gamma + 1)
        running = np.asarray(state.running)
        # Slots behind the live ones may not have been scored.
        counts = running[:, None] & (np.arange(gamma + 1) <= scored.proposal.live[:, None])
        difference = np.abs(scored.raw - fresh).max(axis=2)[counts]
        allowed = logit_tolerance(subject.target, fresh)
        worst = float(difference.max(initial=0.0))
        yield Check(
            stage=stage,
            name="logits of verified rows are those of a fresh pass",
            draft=name,
            passed=worst <= allowed if counts.any() else None,
            found=f"largest difference {worst:.2g}, allowed {allowed:.2g}, {int(counts.sum())} positions",
            values={"difference": worst, "allowed": allowed},
        )


def check_drift(subject: Subject, *, stage: str, level: float) -> Iterator[Check]:
    """The target as its own draft: acceptance late in a text is that at its beginning (Fisher's test).

    A healthy self-draft loses near-ties only, early as often as late. A hole in the draft's cache, or a
    rollback by one too many, never changes a text; it shows here.
    """
    endless = dataclasses.replace(subject, stop=Stop(eos_ids=()))
    decoder = endless.decoder(self_draft(endless.target))
    state = endless.start(decoder, endless.greedy)
    rounds = max(endless.config.max_new_tokens // (4 * (endless.config.gamma + 1)), 1)
    totals = [np.zeros(2, int)]
    while bool(np.any(np.asarray(state.running))):
        state = decoder.run_rounds(state, rounds)
        totals.append(_tried(state.stats))
    parts = np.diff(totals, axis=0)
    parts = parts[parts[:, 1] > 0]
    check = functools.partial(
        Check, stage=stage, name="acceptance of a self-draft does not drift", draft="self"
    )
    if len(parts) < 2:
        yield check(passed=None, found="the text ended too early to tell")
        return
    early, late = parts[0], parts[len(parts) // 2 :].sum(axis=0)
    counts = [[accepted, tried - accepted] for accepted, tried in (early, late)]
    p_value = float(stats.fisher_exact(counts, alternative="greater").pvalue)
    first, last = early[0] / early[1], late[0] / late[1]
    yield check(
        passed=first > 0 and p_value > level,
        found=f"of the tokens that were reached {first:.3f} accepted at first, {last:.3f} in the second half "
        f"(p = {p_value:.2g}), {int(parts[:, 1].sum())} reached",
        values={"first": first, "last": last, "reached": int(parts[:, 1].sum()), "p_value": p_value},
    )


def _tried(statistics: Stats) -> np.ndarray:
    """int[2]: draft tokens accepted, and those that were reached, all before them being accepted.

    Whether a token that is reached is accepted is one trial; those behind a rejected one are none.
    """
    accepted, drafted = (np.sum(at, axis=0) for at in (statistics.accepted_at, statistics.drafted_at))
    reached = np.minimum(drafted, np.append(np.sum(statistics.rounds), accepted[:-1]))
    return np.array([accepted.sum(), reached.sum()])


def check_frequencies(
    subject: Subject, drafts: Mapping[str, Draft], *, stage: str, samples: int, new_tokens: int, level: float
) -> Iterator[Check]:
    """Samples of the whole decoder, plain and speculative: tokens, pairs of tokens, lengths, ends."""
    # At equal width: of another one, laws that are nearly a point may differ by rounding.
    plain = _sample(subject, NoDraft(width=subject.config.gamma), samples, new_tokens, seed=1)
    for name, draft in drafts.items():
        own = _sample(subject, draft, samples, new_tokens, seed=2)

        def compared(count: int, own: list[np.ndarray] = own) -> list[list[tuple[np.ndarray, np.ndarray]]]:
            """Counts of the first samples, by prompt and statistic."""
            return [
                list(_frequencies(left[:count], right[:count], new_tokens))
                for left, right in zip(plain, own, strict=True)
            ]

        distances = {}
        for count in sorted({max(samples // 4, 1), max(samples // 2, 1), samples}):
            pairs = [pair for prompt in compared(count) for pair in prompt]
            distances[count] = tuple(
                float(np.mean([measure(*pair) for pair in pairs])) for measure in (distance, noise_floor)
            )
        # Prompts are independent and add up; statistics of the same samples are not (Bonferroni).
        tables = [
            sum((homogeneous(*pair) for pair in pairs), ChiSquare())
            for pairs in zip(*compared(samples), strict=True)
        ]
        p_value = min(1.0, len(tables) * min(table.p_value for table in tables))
        detectable = tables[0].detectable(level / len(tables))
        seen, floor = distances[samples]
        shown = ", ".join(f"{d:.3f} ({f:.3f}) of {n}" for n, (d, f) in distances.items())
        yield Check(
            stage=stage,
            name="sampled texts have plain decoding's frequencies",
            draft=name,
            passed=p_value > level,
            found=f"p = {p_value:.2g}; distance (and what chance makes) {shown} samples a prompt; "
            f"a total variation of {detectable:.2f} between first tokens would have been found",
            values={
                "p_value": p_value,
                "distance": seen,
                "noise_floor": floor,
                "by_samples": [(n, *both) for n, both in distances.items()],
                "detectable": detectable,
            },
        )


def _sample(subject: Subject, draft: Draft, samples: int, new_tokens: int, seed: int) -> list[np.ndarray]:
    """For each prompt int[samples, new_tokens + 1]: tokens, -1 after the end, and the finish reason.

    Prompts are prefilled once; each batch of samples goes on from there with seeds of its own.
    """
    brief = subject.brief(new_tokens)
    decoder = brief.decoder(draft)
    state = brief.start(decoder, brief.sampling)
    rows = len(subject.lengths)
    batches = []
    for batch in range(samples):
        seeds = np.arange(rows, dtype=np.uint32) + np.uint32((seed << 28) + batch * rows)
        copy = jax.tree.map(jnp.copy, state)
        request = dataclasses.replace(copy.request, seed=jnp.asarray(seeds))
        out = jax.device_get(decoder.result(decoder.run_rounds(dataclasses.replace(copy, request=request))))
        after_end = np.arange(new_tokens) >= out.lengths[:, None]
        tokens = np.where(after_end, -1, out.tokens[:, :new_tokens])
        batches.append(np.concatenate([tokens, out.finish_reasons[:, None]], axis=1))
    return list(np.stack(batches, axis=1))


def _frequencies(
    left: np.ndarray, right: np.ndarray, new_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Counts of both samples for each statistic, over the outcomes that occur in either."""
    lengths = [np.sum(sample[:, :-1] >= 0, axis=1) for sample in (left, right)]
    statistics = [
        *((left[:, [place]], right[:, [place]]) for place in range(new_tokens)),
        (left[:, :2], right[:, :2]),
        (left[:, :3], right[:, :3]),
        (lengths[0][:, None], lengths[1][:, None]),
        (left[:, -1:], right[:, -1:]),
    ]
    for own, other in statistics:
        _, outcome = np.unique(np.concatenate([own, other]), axis=0, return_inverse=True)
        outcome = outcome.reshape(-1)
        size = outcome.max() + 1
        yield (
            np.bincount(outcome[: len(own)], minlength=size),
            np.bincount(outcome[len(own) :], minlength=size),
        )


def _equal_texts(stage: str, promise: str, name: str, out: GenerateResult, plain: GenerateResult) -> Check:
    ends = (out.lengths != plain.lengths) | (out.finish_reasons != plain.finish_reasons)
    differs = np.flatnonzero(np.any(out.tokens != plain.tokens, axis=1) | ends)
    broken = np.flatnonzero(out.violations)
    errors = np.flatnonzero(out.finish_reasons == FinishReason.ERROR)
    accepted, drafted = int(np.sum(out.stats.accepted)), int(np.sum(out.stats.drafted))
    failures = int(np.sum(out.stats.draft_failures))
    if len(differs):
        row = int(differs[0])
        at = np.flatnonzero(out.tokens[row] != plain.tokens[row])
        where = f"from token {at[0]} on" if len(at) else "in how it ends"
        found = f"prompt {row} differs {where}; {len(differs)} of {len(out.lengths)} prompts do"
    elif len(broken):
        found = f"prompt {int(broken[0])} broke an invariant"
    elif len(errors):
        found = f"prompt {int(errors[0])} ended with an error, as in plain decoding"
    else:
        found = f"{int(np.sum(out.lengths))} tokens equal; {accepted} of {drafted} draft tokens accepted"
        found += f"; the draft failed in {failures} rounds" if failures else ""
    passed = not (len(differs) or len(broken) or len(errors))
    return Check(
        stage=stage,
        name=promise,
        draft=name,
        passed=None if passed and not drafted else passed,
        found=found,
        values={
            "different_prompts": differs.tolist(),
            "accepted": accepted,
            "drafted": drafted,
            "draft_failures": failures,
        },
    )


def _audit_widths(subject: Subject, stage: str) -> Check:
    """Whether text in rounds of one token first differs at near-ties, measured by teacher forcing.

    Without penalties, whose margins raw logits do not show.
    """
    plain, narrow = (subject.plain(Sampling(), width=width) for width in (subject.config.gamma, 0))
    texts = np.zeros((len(subject.lengths), subject.prompts.shape[1] + plain.tokens.shape[1]), np.int32)
    for row, length in enumerate(subject.lengths):
        whole = [*subject.prompts[row, :length], *plain.tokens[row, : plain.lengths[row]]]
        texts[row, : len(whole)] = whole
    differs = plain.tokens != narrow.tokens
    rows = np.flatnonzero(np.any(differs, axis=1))
    at = np.argmax(differs, axis=1)
    logits = subject.teacher_forced(texts, subject.lengths + at - 1, 1)[:, 0]
    noise = _shape_noise(subject, texts, logits, subject.lengths + at)
    margins = [float(abs(logits[row, plain.tokens[row, at[row]]] - logits[row, narrow.tokens[row, at[row]]]))
               for row in rows]  # fmt: skip
    worst, allowed = max(margins, default=0.0), _NEAR_TIE * noise
    return Check(
        stage=stage,
        name="greedy text of another width differs at near-ties only",
        draft=None,
        passed=worst <= allowed,
        found=f"{len(rows)} of {len(texts)} prompts differ; largest margin {worst:.2g}, logits of two shapes "
        f"differ by {noise:.2g}",
        values={"margins": margins, "noise": noise, "allowed": allowed, "differing": len(rows)},
    )


def _shape_noise(subject: Subject, texts: np.ndarray, logits: np.ndarray, lengths: np.ndarray) -> float:
    """By how much logits of a whole pass differ from those of one token after a cached text."""
    decoder = subject.decoder(NoDraft(), max_new_tokens=1, capacity=texts.shape[1] + 1)
    state = decoder.start(texts, lengths, sampling=Sampling())
    narrow = np.asarray(decoder.score(state).raw)[:, 0]
    return float(np.abs(narrow - logits).max())
