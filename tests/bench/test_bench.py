"""`specjax bench` as a whole, with a tiny model in place of what a name would load."""

import json
import pathlib
import runpy
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import cli
from specjax.bench import command as bench_command
from specjax.bench import run as bench
from specjax.bench.arms import Facts, Label, Outcome
from specjax.bench.handwritten import HandWritten
from specjax.bench.peers import protocol
from specjax.bench.record import Benchmark
from specjax.bench.workload import DEMO_PROMPTS, make_batches, read_tasks
from specjax.testing import TableLM
from tests.bench.peers import install_echo
from tests.text.tiny import tiny_lm

SPEC_BENCH = """\
{"question_id": 1, "category": "greeting", "turns": ["hello", "again"]}
{"question_id": 2, "category": "greeting", "turns": ["hello there"]}
{"question_id": 3, "category": "question", "turns": ["why?"]}
{"question_id": 4, "category": "greeting", "turns": ["good morning"]}
"""


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(SPEC_BENCH)
    return path


def run(*arguments):
    return cli.main(["bench", *map(str, arguments)])


def test_a_benchmark_from_flags_to_files(prompts, tmp_path, monkeypatch, capsys):
    """Every kind of arm, a batch that its task does not fill, and a peer that another process runs."""
    monkeypatch.setattr(bench, "load", lambda name, dtype: tiny_lm())
    monkeypatch.setattr(bench, "find", lambda name: tmp_path / "model.gguf")
    monkeypatch.setattr(bench, "expand", lambda source, target, dtype: target)
    monkeypatch.setattr(protocol, "_SETTLE_SECONDS", 0.0)
    install_echo(tmp_path, monkeypatch, needs_gguf=True)
    settings = bench.Settings(
        model="tiny",
        dtype="float32",
        drafts=("ngram",),
        gammas=(2,),
        batches=(2,),
        max_new_tokens=10,
        repeats=2,
        hand_written=True,
        peers=("echo",),
    )
    from specjax.bench.report import print_report
    from specjax.text.output import stderr_console

    console = stderr_console()
    benchmark = bench.run(settings, read_tasks(prompts), console)
    print_report(benchmark, console)
    err = capsys.readouterr().err

    names = ["plain", "plain, 3 scored", "ngram, gamma 2", "hand-written", "echo plain"]
    assert [arm.label.name for arm in benchmark.arms] == names  # the peer's lookup takes one row
    assert benchmark.peers == {"echo": "echo 1.0, float32"}
    # Two batches of greetings and one of questions, two turns, and two rows of ten tokens each.
    assert [(r.task, r.index) for r in benchmark.records if r.arm == "plain"] == [
        (task, index) for task, index in (("greeting", 0), ("greeting", 1), ("question", 0)) for _ in range(2)
    ]
    assert {r.tokens for r in benchmark.records} == {20}
    assert "some are in it twice: greeting (3), question (1)" in " ".join(err.split())
    for r in benchmark.records:
        assert r.total_seconds > (r.decode_seconds or 0) > 0
        assert r.first_token_seconds < r.total_seconds
        if r.arm != "echo plain":
            assert (r.differing, r.compared) == (0, 2 * (r.arm != "plain")), r.arm
        else:
            assert r.differing == 2  # what it says has nothing to do with the model
    ngram = [r for r in benchmark.records if r.arm == "ngram, gamma 2"]
    assert 0 < sum(r.accepted_at[0] for r in ngram) <= sum(r.drafted_at[0] for r in ngram)
    facts = {arm.label.name: arm.facts for arm in benchmark.arms}
    assert facts["ngram, gamma 2"].cache_bytes == facts["plain, 3 scored"].cache_bytes > 0
    assert facts["plain"].loop_bytes > facts["plain"].cache_bytes
    assert benchmark.peak_memory[0] > 10**6


@pytest.fixture
def two_arms(monkeypatch):
    """Arms that generate at once, and what they fail with in which of their runs, the sixth."""
    runs, failure = iter(range(100)), [KeyboardInterrupt(), 5]

    class Fake:
        def __init__(self, name, reference):
            self.label = Label(name=name, kind="plain" if name == "plain" else "draft", batch=1, draft="d")

        def warm_up(self, batch):
            return Facts(warmup_seconds=0.0)

        def run(self, batch, new_tokens):
            if next(runs) == failure[1]:
                raise failure[0]
            return Outcome(
                tokens=[[1] * new_tokens],
                total_seconds=2.0,
                first_token_seconds=0.5,
                decode_seconds=1.0,
                decoded=new_tokens,
                rounds=new_tokens,
                row_rounds=new_tokens,
            )

    arms = [Fake("plain", None), Fake("d", "plain")]
    monkeypatch.setattr(bench, "load", lambda name, dtype: tiny_lm())
    monkeypatch.setattr(bench, "_own_arms", lambda *_: arms)
    return failure


def test_ctrl_c_keeps_the_complete_turns(prompts, tmp_path, two_arms, capsys):
    out, figure = tmp_path / "out.json", tmp_path / "out.svg"
    code = run("--jsonl", prompts, "--repeats", 2, "--per-task", 1, "--json", out, "--figure", figure)
    assert code == 130
    err = capsys.readouterr().err
    assert "interrupted" in err
    assert "question, 3" in err
    read = Benchmark.read_json(out)
    assert read.interrupted
    assert [(r.task, r.turn, r.arm) for r in read.records] == [
        ("greeting", 0, "plain"),
        ("greeting", 0, "d"),
        ("greeting", 1, "plain"),
        ("greeting", 1, "d"),
    ]
    assert json.loads(out.read_text())["settings"]["repeats"] == 2
    assert figure.exists()


def test_an_error_keeps_the_complete_turns(prompts, tmp_path, two_arms, monkeypatch, capsys):
    """A dying peer; a picture that cannot be drawn costs nothing else."""

    def no_figure(benchmark, path):
        raise TypeError("no picture")

    two_arms[0] = protocol.PeerError("--peer echo ended with exit code -9")
    monkeypatch.setattr(bench_command, "write_figure", no_figure)
    out = tmp_path / "out.json"
    files = ("--json", out, "--figure", tmp_path / "out.svg")
    assert run("--jsonl", prompts, "--repeats", 2, "--per-task", 1, *files) == 1
    err = capsys.readouterr().err
    assert "error: --peer echo ended with exit code -9" in err
    assert "out.svg was not written: no picture" in err
    assert "batch 1, all tasks" in err
    assert "Traceback" not in err
    read = Benchmark.read_json(out)
    assert read.error == "--peer echo ended with exit code -9"
    assert len(read.records) == 4


def test_ctrl_c_before_the_first_turn_is_told(prompts, tmp_path, two_arms, monkeypatch, capsys):
    two_arms[1] = 0
    out, figure = tmp_path / "out.json", tmp_path / "out.svg"
    assert run("--jsonl", prompts, "--json", out, "--figure", figure) == 130
    assert "interrupted: nothing was measured" in capsys.readouterr().err
    assert not figure.exists()
    measured = tmp_path / "measured.json"
    # The script leaves out files without measurements and goes on.
    script = pathlib.Path(__file__).parents[2] / "scripts" / "bench_tables.py"
    namespace = runpy.run_path(str(script))
    two_arms[1] = -1
    run("--jsonl", prompts, "--repeats", 1, "--per-task", 1, "--json", measured)
    files = map(str, (out, tmp_path / "no", measured))
    monkeypatch.setattr(sys, "argv", ["", *files, "--out", str(tmp_path)])
    assert namespace["main"]() == 1
    err = capsys.readouterr().err
    assert f"left out: {out}: nothing was measured" in err
    assert f"left out: {tmp_path / 'no'}: " in err
    assert (tmp_path / "measured.md").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--gammas", "0"], "--gammas is (0,); expected different integers of at least 1"),
        (["--batch", "2", "2"], "--batch is (2, 2)"),
        (["--repeats", "0"], "--repeats is (0,)"),
        (["--max-new-tokens", "1"], "--max-new-tokens is (1,)"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--temperature", "1", "--hand-written"], "--hand-written decodes greedily"),
        (["--top-k", "5", "--peer", "transformers"], "--peer decodes greedily"),
        (["--jsonl", "/no/such/file"], "/no/such/file"),
        (["--task", "poetry"], "no task 'poetry'; it has summarization"),
        (["--json", "no/folder/out.json"], "there is no folder no/folder"),
        (["--json", "/"], "/ cannot be written: it is a folder"),
        (["--figure", "out.gif"], "out.gif is no figure"),
        (["--draft", "a/b", "--draft", "c/b"], "--draft is a/b and c/b, both called b"),
        (["--draft", "a/ngram"], "called ngram as another arm may be"),
        (["--draft", "plain"], "called plain as another arm may be"),
        (["--peer", "llama-cpp", "--peer-python", "/no/python"], "cannot run /no/python"),
    ],
)
def test_bad_flags_are_refused_before_anything_loads(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(bench, "load", None)
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_peer_that_is_not_installed_is_refused_before_anything_loads(monkeypatch, capsys):
    monkeypatch.setattr(bench, "load", None)
    monkeypatch.setitem(
        protocol.PEERS,
        "openvino",
        protocol.Kind(script="", modules=("no_such_module",), packages="openvino-genai", reads=""),
    )
    assert run("--peer", "openvino") == 2
    err = capsys.readouterr().err
    assert "needs no_such_module" in err
    assert f"{sys.executable} does not have" in err
    assert "pip install openvino-genai" in err


def test_tasks_are_read_in_the_order_of_the_file(prompts):
    tasks = read_tasks(prompts, per_task=2)
    assert {task: [p.name for p in own] for task, own in tasks.items()} == {
        "greeting": ["1", "2"],
        "question": ["3"],
    }
    assert list(read_tasks(prompts, ["question"])) == ["question"]
    assert len(read_tasks(None)) == 4
    assert DEMO_PROMPTS.exists()


def test_lines_without_a_prompt_are_refused(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a"}\n{"turns": []}\n')
    with pytest.raises(ValueError, match=r"line 2: turns is \[\]"):
        read_tasks(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        read_tasks(path)
    path.write_text('{"prompt": "a"}\n')
    assert list(read_tasks(path)) == ["prompts"]


def test_batches_have_one_shape_and_are_filled():
    tasks = {"a": [(str(n), [n + 1] * (n + 1)) for n in range(3)], "b": [("x", [9] * 70)]}
    batches = make_batches(tasks, 2)
    assert [(b.task, b.index, b.names) for b in batches] == [
        ("a", 0, ("0", "1")),
        ("a", 1, ("2", "0")),
        ("b", 0, ("x", "x")),
    ]
    assert {b.prompts.shape for b in batches} == {(2, 128)}
    assert batches[1].token_ids == [[3, 3, 3], [1]]


def test_the_hand_written_loop_decodes_greedily():
    """Against the table itself, rows of unequal length, and in two calls."""
    model = TableLM.random(11, seed=3)
    table = np.asarray(model.table[...])
    program = HandWritten(model, new_tokens=9, prefill_chunk=2)
    prompts, lengths = np.array([[1, 2, 3, 4, 5], [7, 8, 0, 0, 0]], np.int32), np.array([5, 2], np.int32)
    state = program.run(program.prefill(prompts, lengths), jnp.int32(1))
    tokens = np.asarray(program.run(state, jnp.int32(9))[-1])
    for row, length, found in zip(prompts, lengths, tokens, strict=True):
        text = row[:length].tolist()
        for _ in range(9):
            text.append(int(np.argmax(table[text[-2], text[-1]])))
        assert text[length:] == found.tolist()
    out = specjax.generate(model, prompts, lengths, config=specjax.DecodeConfig(max_new_tokens=9))
    np.testing.assert_array_equal(out.tokens, tokens)
