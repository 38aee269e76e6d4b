"""A device, seen through a pair of models with random weights: parts of a round, speed, memory, exactness.

Speeds come from synthetic acceptance (`specjax.bench.synthetic`), and what is returned says so.
`scripts/device_check.py` runs these parts one after another.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from specjax.bench.synthetic import LABEL, SyntheticDecoder
from specjax.bench.timing import Arm, interleave, paired_ratio
from specjax.decoding import DecodeConfig, Decoder, DecodeState, Stop, generate
from specjax.drafts import Model, NoDraft
from specjax.sampling import Sampling
from specjax.testing import Oracle, TableLM, sequence_law
from specjax.tune.components import Bench, measure, without_draft
from specjax.tune.cost import RoundTime

Found = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A pair of models and how it is run.

    Attributes:
        target, draft: conform to `specjax.models.ScoringModel`.
        rates: at which draft tokens are accepted, by position; as many as gamma.
        prompt_width: tokens of each prompt, drawn at random.
        repeats: of what is timed; `seconds`: about how long a part of a round is timed each time.
    """

    target: Any
    draft: Any
    rates: tuple[float, ...]
    prompt_width: int
    new_tokens: int
    repeats: int
    seconds: float

    @property
    def gamma(self) -> int:
        return len(self.rates)

    @property
    def config(self) -> DecodeConfig:
        return DecodeConfig(max_new_tokens=self.new_tokens, gamma=self.gamma)

    def synthetic(self) -> SyntheticDecoder:
        return SyntheticDecoder(self.target, Model(self.draft), self.config, rates=self.rates)

    def start(self, decoder: Decoder, batch: int, temperature: float) -> DecodeState:
        """A prefilled batch whose rows end at their budget alone."""
        prompts = np.random.default_rng(0).integers(0, self.target.vocab_size, (batch, self.prompt_width))
        lengths = np.full(batch, self.prompt_width)
        sampling = Sampling(temperature=temperature)
        return decoder.start(prompts.astype(np.int32), lengths, sampling=sampling, stop=Stop(eos_ids=[]))


def device_memory() -> dict[str, int]:
    """The first device's own count of its memory; empty where it keeps none, as CPUs do."""
    return jax.devices()[0].memory_stats() or {}


def _copy(state: DecodeState) -> DecodeState:
    return jax.tree.map(jnp.copy, state)


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def check_memory(decoder: Decoder, state: DecodeState) -> Found:
    """The compiler's plan for the decoding loop, and the largest amount that was really in use."""
    programs = decoder._compiled_for(state)
    compiled = programs.run.lower(decoder._weights, state, jnp.int32(1)).compile()
    plan = compiled.memory_analysis()
    jax.block_until_ready(decoder.run_rounds(_copy(state), 1))
    total = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    found = {
        "weights_gb": _bytes(decoder._weights) / 1e9,
        "caches_gb": _bytes((state.cache, state.draft)) / 1e9,
        "temporaries_gb": plan.temp_size_in_bytes / 1e9,
        "donated_gb": plan.alias_size_in_bytes / 1e9,
        # While it runs, the state that it was copied from exists as well.
        "planned_peak_gb": (total - plan.alias_size_in_bytes + _bytes(state)) / 1e9,
    }
    if "peak_bytes_in_use" in (now := device_memory()):
        return found | {"peak_gb": now["peak_bytes_in_use"] / 1e9}
    return found | {"peak_process_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def time_parts(case: Case, state: DecodeState) -> Found:
    """Milliseconds of a round's parts, each in a compiled loop, at the length of the prompts."""
    bench = Bench(case.target, Model(case.draft), case.config, _copy(state))
    loops = {
        "plain round": bench.plain_round(1),
        f"draft {case.gamma}": bench.proposing(case.gamma),
        "verify 1": bench.scoring(1),
        f"verify {case.gamma + 1}": bench.scoring(case.gamma + 1),
        f"round of {case.gamma + 1}, no draft": bench.plain_round(case.gamma + 1),
    }
    seconds = measure(loops, repeats=case.repeats, seconds=case.seconds)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def compare_speed(case: Case, decoder: Decoder, state: DecodeState, parts: Found) -> Found:
    """Whole decoding against plain decoding, and against what the cost model says of the parts."""
    plain = Decoder(case.target, NoDraft(), case.config)

    def timed(decoder: Decoder, fresh: Callable[[], DecodeState]) -> tuple[float, int, float]:
        state = jax.block_until_ready(fresh())
        begun = time.perf_counter()
        state = jax.block_until_ready(decoder.run_rounds(state))
        seconds = time.perf_counter() - begun
        rounds = int(np.max(np.asarray(state.stats.rounds)))
        return seconds, rounds, float(np.mean(np.asarray(state.stats.mean_tokens_per_round)))

    arms = [
        Arm(name="plain", run=lambda: timed(plain, lambda: without_draft(_copy(state), 0))),
        Arm(name="speculative", run=lambda: timed(decoder, lambda: _copy(state))),
    ]
    samples = interleave(arms, case.repeats)
    seconds = {name: [sample.result[0] for sample in taken] for name, taken in samples.items()}
    rounds, per_round = samples["speculative"][0].result[1:]
    verify = parts[f"verify {case.gamma + 1}"]
    overhead = max(parts[f"round of {case.gamma + 1}, no draft"] - verify, 0.0)
    model = RoundTime(draft=parts[f"draft {case.gamma}"], verify=verify, overhead=overhead)
    measured = paired_ratio(seconds["plain"], seconds["speculative"])
    predicted = model.speedup(case.new_tokens / rounds, parts["plain round"])
    batch = state.length.shape[0]
    return {
        "acceptance": LABEL,
        "tokens_per_round": per_round,
        "tokens_per_second_plain": batch * case.new_tokens / statistics.median(seconds["plain"]),
        "tokens_per_second": batch * case.new_tokens / statistics.median(seconds["speculative"]),
        "measured_speedup": measured.median,
        "measured_low": measured.low,
        "measured_high": measured.high,
        "predicted_speedup": predicted,
        "error": predicted / measured.median - 1,
    }


def host_gap(case: Case, decoder: Decoder, state: DecodeState) -> Found:
    """What a round costs more when the host starts each: streaming round by round, against one loop."""
    rounds = max(case.new_tokens // (case.gamma + 1) - 1, 1)  # no row has ended after so many

    def run(each: int) -> float:
        own = jax.block_until_ready(_copy(state))
        begun = time.perf_counter()
        for _ in range(rounds // each):
            own = decoder.run_rounds(own, each)
        jax.block_until_ready(own)
        return (time.perf_counter() - begun) / rounds

    arms = [Arm(name="one call", run=lambda: run(rounds)), Arm(name="a call each", run=lambda: run(1))]
    samples = interleave(arms, case.repeats)
    one, each = ([s.result for s in samples[arm.name]] for arm in arms)
    return {
        "round_ms": 1e3 * statistics.median(one),
        "round_ms_a_call_each": 1e3 * statistics.median(each),
        "gap_ms": 1e3 * statistics.median(np.subtract(each, one)),
    }


def check_greedy(case: Case, state: DecodeState) -> Found:
    """Greedy text under every pattern of acceptance against plain decoding, in rounds of equal width.

    Row r is told plain decoding's text with an error at slot r. Programs may differ in how they round, so a
    first difference is right if it is a near-tie: if the two logits differ by at most 4 times as much as
    logits of two widths do.
    """
    rows = state.length.shape[0]
    plain = Decoder(case.target, NoDraft(width=case.gamma), case.config)

    def fresh() -> DecodeState:
        return without_draft(_copy(state), case.gamma)

    expected = np.asarray(plain.result(plain.run_rounds(fresh())).tokens)
    oracle = Oracle.of(expected, np.full(rows, case.prompt_width), np.arange(rows) % (case.gamma + 1))
    decoder = Decoder(case.target, oracle, case.config)
    out = decoder.result(decoder.run_rounds(fresh()))
    differs = np.asarray(out.tokens) != expected
    found = {
        "rows": rows,
        "rows_equal": int(np.sum(~np.any(differs, axis=1))),
        "accepted": int(np.sum(np.asarray(out.stats.accepted))),
        "drafted": int(np.sum(np.asarray(out.stats.drafted))),
        "passed": not np.any(differs),
    }
    if found["passed"]:
        return found
    row = int(np.argmax(np.any(differs, axis=1)))
    at = int(np.argmax(differs[row]))
    narrow = Decoder(case.target, NoDraft(), case.config)
    before = plain.run_rounds(fresh(), at) if at else fresh()
    wide_logits = np.asarray(plain.score(before).raw)[row, 0]
    narrow_logits = np.asarray(narrow.score(without_draft(before, 0)).raw)[row, 0]
    noise = float(np.abs(wide_logits - narrow_logits).max())
    margin = float(abs(wide_logits[expected[row, at]] - wide_logits[int(out.tokens[row, at])]))
    return found | {"differs_at": at, "margin": margin, "noise": noise, "passed": margin <= 4 * noise}


def check_law(rows: int) -> Found:
    """Samples of three tokens, with a draft that is often wrong, against the target's law (chi-square)."""
    vocab, length, prompt = 5, 3, (1, 2)
    target, draft = TableLM.random(vocab, seed=0), TableLM.random(vocab, seed=1)
    out = generate(
        target,
        np.tile(np.array(prompt, np.int32), (rows, 1)),
        np.full(rows, len(prompt)),
        draft=Model(draft),
        config=DecodeConfig(max_new_tokens=length, gamma=2),
        sampling=Sampling(temperature=1.0),
        stop=Stop(eos_ids=[]),
    )
    table = np.asarray(target.table[...], np.float64)

    def log_law(text: tuple[int, ...]) -> np.ndarray:
        logits = table[text[-2], text[-1]]
        return logits - np.log(np.sum(np.exp(logits)))

    law = sequence_law(log_law, prompt, length)
    drawn = np.asarray(out.tokens)[:, :length] @ vocab ** np.arange(length)[::-1]
    counts = np.bincount(drawn, minlength=len(law))
    often = law * rows >= 5  # where chi-square holds; the rest is one bin
    seen = np.append(counts[often], counts[~often].sum())
    expected = np.append(law[often], law[~often].sum()) * rows
    keep = expected > 0
    p_value = float(stats.chisquare(seen[keep], expected[keep]).pvalue)
    accepted, drafted = np.sum(np.asarray(out.stats.accepted)), np.sum(np.asarray(out.stats.drafted))
    return {
        "samples": rows,
        "p_value": p_value,
        "accepted": f"{int(accepted)} of {int(drafted)}",
        "passed": p_value > 1e-6,
    }
