"""The command line, in this process and with a tiny model in place of what a name would load."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import jax
import pytest

import specjax
from specjax import cli
from specjax.text import generation, session
from tests.text.tiny import tiny_lm

TINY = ["--max-new-tokens", "12", "--gamma", "2"]


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    """Names of models, and a terminal on stdin."""

    def load(name, dtype):
        if name == "missing":
            raise ValueError("no model 'missing'")
        if name == "other-tokens":
            return tiny_lm(first="<other>")
        return tiny_lm(1) if name == "small" else tiny_lm()

    monkeypatch.setattr(session, "load", load)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


@pytest.fixture
def run(capsys):
    """`run(*arguments)`: exit code, stdout and stderr of `specjax generate` with them."""

    def run(*arguments):
        code = cli.main(["generate", *TINY, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def answer():
    """What the tiny model answers to "hello" in 12 greedy tokens."""
    lm = tiny_lm()
    ids = lm.encode_chat("hello")
    config = specjax.DecodeConfig(max_new_tokens=12)
    out = specjax.generate(lm.model, [ids], [len(ids)], config=config)
    return lm.decode(out.tokens[0, : out.lengths[0]])


def stdin(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_stdout_holds_the_text_and_stderr_the_report(run, answer):
    code, out, err = run("hello")
    assert code == 0
    assert out == answer + "\n"
    for part in ("acceptance at each draft position", "compile time", "draft ngram, gamma 2"):
        assert part in err


def test_prompts_from_files_and_stdin(run, answer, tmp_path, monkeypatch):
    path = tmp_path / "prompt.txt"
    path.write_text("hello")
    assert run("--file", path)[1] == answer + "\n"
    stdin(monkeypatch, "hello")
    assert run()[1] == answer + "\n"


def test_every_draft_gives_the_greedy_text(run, answer):
    for draft in ("none", "small", "target"):
        code, out, err = run("hello", "--draft", draft)
        assert (code, out) == (0, answer + "\n")
        assert f"draft {draft}" in err


def test_a_pair_file_gives_defaults_and_flags_win(run, answer, tmp_path):
    path = tmp_path / "pair.toml"
    path.write_text(
        'target = "large"\ndraft = "ngram+small"\ngamma = 3\nrule = "coupled"\nverify_widths = [2]\n'
        'policy = "confidence:0.1"\n'
    )
    code, out, err = run("hello", "--config", path)
    assert (code, out) == (0, answer + "\n")
    assert "model large" in err
    assert "draft ngram+small, gamma 2, rule coupled, policy confidence:0.1, verify widths also 2" in err

    path.write_text('target = "large"\nspeculate = false\n')
    assert "draft none" in run("hello", "--config", path)[2]
    path.write_text('model = "large"\n')
    code, _, err = run("hello", "--config", path)
    assert code == 2
    assert f"{path}: unknown key model" in err


def test_a_jsonl_file_with_bad_lines(run, answer, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "greeting", "prompt": "hello"}\n{"prompt": }\n{"prompt": "' + "x" * 600 + '"}\n')
    code, out, err = run("--jsonl", path)
    assert code == 1
    assert out == answer + "\n"
    assert "line 2: not JSON" in err
    assert "line 3: the prompt has 6" in err
    assert "greeting" in err


def test_json_output(run, answer, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "prompt": "hello"}\n[]\n{"id": "b", "turns": ["hello"]}\n')
    code, out, _ = run("--jsonl", path, "--json", "--logprobs")
    bad, first, second, last = map(json.loads, out.splitlines())
    assert code == 1
    assert bad == {"line": 2, "error": "is a JSON list; expected an object"}
    assert [first["id"], second["id"]] == ["a", "b"]
    assert first["text"] == second["text"] == answer
    assert len(first["logprobs"]) == len(first["token_ids"])
    assert last["report"]["prompts"] == 2


def test_log_probabilities_have_a_table(run):
    _, out, err = run("hello", "--logprobs")
    assert "raw logprob" in err
    assert "logprob" not in out


def test_stop_text_is_not_shown(run, answer):
    stop = answer[6:9]  # three tokens
    code, out, err = run("hello", "--stop", "never this", "--stop", stop)
    assert code == 0
    assert out == answer[: answer.index(stop)] + "\n"
    assert " stop " in err


def test_equal_seeds_give_equal_samples(run):
    samples = [run("hello", "--temperature", 1, "--seed", seed)[1] for seed in (5, 5, 6)]
    assert samples[0] == samples[1] != samples[2]


def test_comparing(run, answer):
    code, out, err = run("hello", "--compare", "--repeats", "1")
    assert (code, out) == (0, answer + "\n")
    assert "identical: yes | ratio: " in err


@pytest.mark.parametrize("rule, identical", (("coupled", "yes"), ("block", "not asked")))
def test_comparing_samples(run, rule, identical):
    """The text of the coupled rule does not depend on the draft; that of the others only keeps its law."""
    arguments = ("--compare", "--repeats", "1", "--temperature", "1", "--rule", rule)
    code, _, err = run("hello", *arguments)
    assert code == 0
    assert f"identical: {identical}" in err


def test_a_difference_from_plain_decoding_fails(run, monkeypatch):
    measure = generation.Runner.measure
    # Plain at equal width; speculative and plain; speculative at one width.
    answers = iter([[1, 2, 3], [1, 9, 3], [1, 2, 3], [1, 9, 3]])

    def fake(runner, ids):
        return (next(answers), 1.0) if len(ids) > 1 else measure(runner, ids)  # a warm-up has one token

    monkeypatch.setattr(generation.Runner, "measure", fake)
    code, _, err = run("hello", "--compare", "--repeats", "1")
    assert code == 1
    assert "identical: no, first at generated token 1" in err


@pytest.mark.parametrize(
    "draft, reason",
    [
        ("missing", "no model"),
        ("other-tokens", "different vocabularies"),
        ("ngram+layers:1-2", "indices below 1"),
    ],
)
def test_a_draft_that_cannot_be_used(run, answer, draft, reason):
    code, out, err = run("hello", "--draft", draft)
    assert (code, out) == (0, answer + "\n")
    assert err.count("warning:") == 1
    assert reason in err
    assert "decoded plainly, because the draft failed" in err
    assert "draft none" in err

    code, out, err = run("hello", "--draft", draft, "--on-draft-failure", "fail")
    assert (code, out) == (2, "")
    assert reason in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["hi", "--temperature", "-1"], "temperature is -1.0"),
        (["hi", "--top-p", "0"], "top_p is 0.0"),
        (["hi", "--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["hi", "--gamma", "-1"], "gamma is -1"),
        (["hi", "--policy", "brave"], "'brave' is no length policy"),
        (["hi", "--draft", "early-exit:two"], "draft is 'early-exit:two'"),
        (["hi", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["hi", "--stop", ""], "--stop is empty"),
        (["hi", "--compare", "--repeats", "0"], "--repeats is 0"),
        (["hi", "--compare", "--draft", "none"], "--compare needs a draft"),
        (["hi", "--raw", "--system", "x"], "--system needs the chat template"),
        (["hi", "--file", "x"], "prompts from prompt and file"),
        (["--file", "/no/such/file"], "/no/such/file"),
        (["--jsonl", "/no/such/file"], "/no/such/file"),
        ([], "no prompt"),
    ],
)
def test_bad_flags_are_refused_before_anything_loads(run, monkeypatch, arguments, message):
    monkeypatch.setattr(session, "load", None)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments, message", [(["--model", "missing"], "no model"), ([], "the prompt has 6.. tokens")]
)
def test_what_is_found_out_after_loading(run, arguments, message):
    code, out, err = run("x" * 600, *arguments)
    assert (code, out) == (2, "")
    assert re.search(message, err)


def test_unknown_flags_and_commands_are_refused(capsys):
    for arguments in (["generate", "--no-such-flag"], ["transmogrify"], []):
        with pytest.raises(SystemExit) as refused:
            cli.main(arguments)
        assert refused.value.code == 2


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere tokens that are scored cost little")
@pytest.mark.parametrize(
    "flags, widths",
    [
        ({}, (2, 3)),
        ({"draft": "recycling"}, (2, 3)),
        ({"draft": "small"}, ()),
        ({"draft": "small", "policy": "confidence"}, (2, 3)),
        ({"draft": "small", "policy": "adaptive"}, (1, 2, 3)),
        ({"draft": "small", "policy": "adaptive", "verify_widths": ()}, ()),
    ],
)
def test_rounds_have_several_widths_where_proposals_are_short(flags, widths):
    assert cli.Generate(gamma=4, **flags).settings().config.verify_widths == widths


def test_ctrl_c_ends_a_run_with_its_report(run, tmp_path, monkeypatch):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "first", "prompt": "hello"}\n{"id": "never", "prompt": "hello"}\n')

    def interrupt(self, text):
        sys.stdout.write(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("specjax.text.output.TextOutput.show", interrupt)
    monkeypatch.setattr("specjax.text.output.TextOutput.finish_text", lambda *_: None)
    code, out, err = run("--jsonl", path)
    assert code == 130
    assert len(out) == 1
    assert "cancelled" in err
    assert "never" not in err


def test_ctrl_c_while_loading(run, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "load", interrupt)
    code, _, err = run("hello")
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_a_reader_that_has_seen_enough():
    """A pipe that closes at once: no traceback, and nothing at exit either."""
    program = (
        "import sys; from specjax import cli; from specjax.text import session; from tests.text import tiny;"
        "session.load = lambda name, dtype: tiny.tiny_lm(); sys.exit(cli.main())"
    )
    command = [sys.executable, "-c", program, "generate", "hello", *TINY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() == 141
    assert "Traceback" not in err
    assert "BrokenPipeError" not in err
