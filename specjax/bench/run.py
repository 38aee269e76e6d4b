"""A run of `specjax bench`: load, warm up, measure in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from specjax.bench.arms import BenchArm, DecoderArm, HandWrittenArm, Label, Outcome
from specjax.bench.handwritten import HandWritten
from specjax.bench.peers import PEERS, Peer, PeerArm, check_packages
from specjax.bench.peers.expand import expand
from specjax.bench.record import Benchmark, MeasuredArm, Record
from specjax.bench.timing import Arm, Sample, environment, interleave, usable_cores
from specjax.bench.workload import Batch, make_batches
from specjax.decoding import DecodeConfig, Decoder
from specjax.drafts import Draft, NoDraft
from specjax.drafts.names import draft_named, model_of
from specjax.models.load import LanguageModel, find, load
from specjax.sampling import Sampling
from specjax.text.comparison import first_difference
from specjax.text.flags import round_widths
from specjax.text.output import in_words, status
from specjax.text.prompts import Prompt, encode
from specjax.verify import RULES

PLAIN = "plain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
        drafts: as `draft_named` takes them; plain decoding is always measured.
        gammas: draft tokens a round, each for every draft.
        batches: rows decoded together.
        policy: of the drafts' lengths.
        repeats: turns in which every arm decodes each batch of prompts once.
        hand_written: also measure a loop written by hand.
        peers: names of `specjax.bench.peers.PEERS`.
        peer_python: the interpreter that runs them. peer_model: what they load; None for `model`.
        peer_gammas: draft tokens of their prompt lookup.
    """

    model: str
    dtype: str
    drafts: tuple[str, ...]
    gammas: tuple[int, ...]
    batches: tuple[int, ...]
    max_new_tokens: int
    repeats: int
    rule: str = "auto"
    policy: str = "fixed"
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    raw: bool = False
    hand_written: bool = False
    peers: tuple[str, ...] = ()
    peer_python: str = sys.executable
    peer_model: str | None = None
    peer_gammas: tuple[int, ...] = (5,)

    @property
    def greedy(self) -> bool:
        return bool(np.all(np.asarray(self.sampling.temperature) == 0))


def run(settings: Settings, tasks: dict[str, list[Prompt]], console: Console) -> Benchmark:
    """Measures; Ctrl-C ends it early, and so does any error, with what was measured until then.

    Args:
        tasks: prompts of each task. Those that are too long for the model's context are left out.

    Raises:
        ValueError, RuntimeError, ImportError, OSError: a model or a peer cannot be loaded, or no prompt fits;
            whatever goes wrong before anything is measured.
    """
    for name in settings.peers:
        check_packages(name, settings.peer_python)
    with status(console, f"loading {settings.model} ..."):
        lm = load(settings.model, dtype=settings.dtype)
    drafts = {name: _draft(name, settings.dtype, console) for name in settings.drafts}
    encoded = _encoded(lm, tasks, settings, console)
    benchmark = Benchmark(
        settings=_described(settings, str(lm.model.embedding.dtype)),
        environment=environment(),
        prompts={task: [(name, len(ids)) for name, ids in prompts] for task, prompts in encoded.items()},
    )
    start = time.perf_counter()

    def progress(message: str) -> None:
        console.print(f"{time.perf_counter() - start:5.0f} s  {message}")

    try:
        with _peers(settings, benchmark.settings["dtype"], console) as peers:
            benchmark.peers = {peer.name: peer.version for peer in peers}
            for size in settings.batches:
                batches = make_batches(encoded, size)
                arms = [*_own_arms(settings, lm.model, drafts, size), *_peer_arms(settings, peers, size)]
                measure(benchmark, arms, batches, settings, progress)
    except KeyboardInterrupt:
        benchmark.interrupted = True
    except Exception as error:
        # A peer that dies or memory that runs out late must not cost what was measured before.
        if not benchmark.records:
            raise
        benchmark.error = in_words(error)
    benchmark.peak_memory = peak_memory()
    return benchmark


def measure(
    benchmark: Benchmark,
    arms: Sequence[BenchArm],
    batches: Sequence[Batch],
    settings: Settings,
    progress: Callable[[str], object],
) -> None:
    """Warms the arms up, then lets them take turns on each batch; adds to the benchmark as it goes."""
    for number, arm in enumerate(arms, start=1):
        progress(f"batch {arm.label.batch}: warming up {arm.label.name} ({number} of {len(arms)})")
        benchmark.arms.append(MeasuredArm(label=arm.label, facts=arm.warm_up(batches[0])))
    labels = [arm.label for arm in arms]
    comparable = settings.greedy or RULES[settings.rule].shares_noise
    for number, batch in enumerate(batches, start=1):
        progress(
            f"batch {len(batch.names)}: {batch.task}, {', '.join(batch.names)} ({number} of {len(batches)})"
        )

        def record(turn: dict[str, Sample[Outcome]], batch: Batch = batch) -> None:
            benchmark.records += [_record(label, batch, turn, compare=comparable) for label in labels]

        turns = [Arm(name=arm.label.name, run=_bound(arm, batch, settings.max_new_tokens)) for arm in arms]
        interleave(turns, settings.repeats, warmup=0, on_turn=record)


def peak_memory() -> tuple[int, str]:
    """The most memory that was in use at a time so far, in bytes, and whose: "device" or "process"."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"]), "device"
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"


def short_name(draft: str) -> str:
    """What tables call a draft: of a path the last part."""
    search, path = model_of(draft)
    return search + pathlib.Path(path).name


def _bound(arm: BenchArm, batch: Batch, new_tokens: int) -> Callable[[], Outcome]:
    return lambda: arm.run(batch, new_tokens)


def _record(label: Label, batch: Batch, turn: dict[str, Sample[Outcome]], *, compare: bool) -> Record:
    sample, outcome = turn[label.name], turn[label.name].result
    rows = len(outcome.tokens)
    differences: list[int | None] = []
    if compare and label.reference is not None:
        expected = turn[label.reference].result.tokens
        differences = [
            first_difference(own, other) for own, other in zip(outcome.tokens, expected, strict=True)
        ]
    found = [difference for difference in differences if difference is not None]
    return Record(
        arm=label.name,
        batch=label.batch,
        task=batch.task,
        index=batch.index,
        turn=sample.turn,
        tokens=sum(map(len, outcome.tokens)),
        decode_tokens=outcome.decoded * rows,
        total_seconds=outcome.total_seconds,
        first_token_seconds=outcome.first_token_seconds,
        decode_seconds=outcome.decode_seconds,
        rounds=outcome.rounds,
        row_rounds=outcome.row_rounds,
        drafted_at=outcome.drafted_at,
        accepted_at=outcome.accepted_at,
        compared=len(differences),
        differing=len(found),
        first_difference=min(found, default=None),
        busy_elsewhere=sample.busy_elsewhere,
    )


def _own_arms(settings: Settings, model: Any, drafts: dict[str, Draft], size: int) -> list[BenchArm]:
    """Plain decoding at every width, each draft with each gamma, and the loop written by hand."""

    def arm(label: Label, draft: Draft) -> DecoderArm:
        config = DecodeConfig(
            max_new_tokens=settings.max_new_tokens,
            gamma=label.gamma,
            verify_widths=label.verify_widths,
            rule=settings.rule,
            policy=settings.policy if label.kind == "draft" else "fixed",
        )
        return DecoderArm(label=label, decoder=Decoder(model, draft, config), sampling=settings.sampling)

    arms: list[BenchArm] = [arm(Label(name=PLAIN, kind="plain", batch=size), NoDraft())]
    for gamma in settings.gammas:
        label = Label(name=_wide(gamma), kind="plain", batch=size, gamma=gamma, reference=PLAIN)
        arms.append(arm(label, NoDraft(width=gamma)))
    for name, draft in drafts.items():
        short = short_name(name)
        for gamma in settings.gammas:
            label = Label(
                name=f"{short}, gamma {gamma}",
                kind="draft",
                batch=size,
                draft=short,
                gamma=gamma,
                verify_widths=round_widths((name,), gamma, settings.policy),
                reference=_wide(gamma),
            )
            arms.append(arm(label, draft))
    if settings.hand_written:
        label = Label(name="hand-written", kind="hand-written", batch=size, reference=PLAIN)
        arms.append(HandWrittenArm(label=label, program=HandWritten(model, settings.max_new_tokens)))
    return arms


def _wide(gamma: int) -> str:
    return f"plain, {gamma + 1} scored"


def _peer_arms(settings: Settings, peers: Sequence[Peer], size: int) -> list[BenchArm]:
    """The modes of each peer that take so large a batch."""
    arms: list[BenchArm] = []
    for peer in peers:
        for mode, largest in peer.modes.items():
            if largest is not None and size > largest:
                continue
            for gamma in settings.peer_gammas if mode == "lookup" else (0,):
                label = Label(
                    name=f"{peer.name} {mode}" + (f", gamma {gamma}" if gamma else ""),
                    kind="peer",
                    batch=size,
                    draft="lookup" if gamma else None,
                    gamma=gamma,
                    reference=PLAIN,
                )
                arms.append(PeerArm(label=label, peer=peer, mode=mode))
    return arms


@contextlib.contextmanager
def _peers(settings: Settings, dtype: str, console: Console) -> Generator[list[Peer], None, None]:
    """Running peers; they end with the block."""
    with contextlib.ExitStack() as stack:
        peers: list[Peer] = []
        for name in settings.peers:
            model = find(settings.peer_model or settings.model)
            if PEERS[name].needs_gguf and model.suffix == ".gguf" and settings.peer_model is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="specjax-bench-"))
                with status(console, f"writing {model.name} in {dtype} for {name} ..."):
                    model = expand(model, pathlib.Path(folder) / f"{dtype}.gguf", dtype)
            device = "cuda" if jax.default_backend() == "gpu" else "cpu"
            with status(console, f"starting {name} ..."):
                peer = Peer(
                    name,
                    settings.peer_python,
                    model,
                    dtype=dtype,
                    threads=usable_cores(),
                    device=device,
                )
            stack.callback(peer.close)
            peers.append(peer)
        yield peers


def _draft(name: str, dtype: str, console: Console) -> Draft:
    def load_model(name: str) -> Any:
        with status(console, f"loading the draft {name} ..."):
            return load(name, dtype=dtype).model

    return draft_named(name, load_model)


def _encoded(
    lm: LanguageModel, tasks: dict[str, list[Prompt]], settings: Settings, console: Console
) -> dict[str, list[tuple[str, list[int]]]]:
    """Names and token ids of the prompts that fit into the model's context."""
    longest = lm.model.context_length and lm.model.context_length - settings.max_new_tokens
    encoded: dict[str, list[tuple[str, list[int]]]] = {}
    for task, prompts in tasks.items():
        for prompt in prompts:
            try:
                ids = encode(lm, prompt, raw=settings.raw, system=None, longest=longest)
            except ValueError as error:
                console.print(f"left out: {task}, {prompt.name}: {error}")
            else:
                encoded.setdefault(task, []).append((prompt.name, ids))
    if not encoded:
        raise ValueError("no prompt is left")
    return encoded


def _described(settings: Settings, dtype: str) -> dict[str, Any]:
    """The settings as plain data, with the dtype that was chosen."""
    default = Sampling()
    sampling = {
        field.name: value
        for field in dataclasses.fields(default)
        if (value := getattr(settings.sampling, field.name)) != getattr(default, field.name)
    }
    described = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return described | {"dtype": dtype, "sampling": sampling}
