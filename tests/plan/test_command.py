"""`specjax plan`, for the CPU and a tiny model."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json

import pytest
from rich.console import Console

from specjax import cli
from specjax.plan.report import notes, tables
from tests.plan.test_plan import MADE, RUN


@pytest.fixture
def pair(tmp_path, goldens):
    """A pair file beside its target's shapes; there are no weights."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text((goldens / "tiny_llama3" / "config.json").read_text())
    path = tmp_path / "pair.toml"
    path.write_text('target = "tiny"\ngamma = 2\nprompt_width = 8\nmax_new_tokens = 4\ndevices = ["cpu"]\n')
    return path


def test_a_pair_is_planned_without_weights(pair, tmp_path, capsys):
    out = tmp_path / "plan.json"
    arguments = ["--batch", "2", "--mesh", "model", "1", "--memory-only", "--json", str(out)]
    code = cli.main(["plan", str(pair), *arguments])
    shown, progress = capsys.readouterr()
    written = json.loads(out.read_text())
    assert code == int(bool(written["faults"]))
    assert (written["batch"], written["gamma"], written["capacity"]) == (2, 2, 12)
    assert [program["name"] for program in written["programs"]] == ["start", "run"]
    assert "target weights" in shown
    assert "cpu, 1 model: 2 rows of 12 tokens, gamma 2" in " ".join(shown.split())
    assert "compiling the loop of rounds" in progress


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "no/such", "--device", "cpu"], "model is 'no/such'; expected a directory"),
        (["--device", "cpu"], "no --model; give it, or a pair file"),
        (["--model", "x"], "no --device; give it, or a pair file"),
        (["--model", "x", "--device", "v9:2x2"], "device is 'v9:2x2'; expected h200, cpu"),
        (["--model", "x", "--device", "v5e:0x0"], "device is 'v5e:0x0'; expected h200, cpu"),
        (["--model", "x", "--device", "cpu", "--mesh", "foo", "4"], "mesh has the axes foo; expected data"),
        (["--model", "x", "--device", "cpu", "--gamma", "-1"], "gamma is -1"),
        (["--model", "x", "--device", "cpu", "--json", "/"], "/ cannot be written: it is a folder"),
        (["--model", "x", "--device", "cpu", "--json", "/no/such/plan.json"], "there is no folder /no/such"),
        (["no/such.toml"], "no/such.toml: not readable"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, capsys):
    assert cli.main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


def test_a_missing_compiler_is_no_traceback(pair, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "libtpu" else found(name, *rest)
    )
    assert cli.main(["plan", str(pair), "--device", "v5e:2x2"]) == 2
    assert "pip install 'specjax[tpu]'" in capsys.readouterr().err


def test_tables_hold_what_a_plan_holds():
    stream = io.StringIO()
    console = Console(file=stream, width=140)
    bad = dataclasses.replace(RUN, copies=("copy f32[2]",))
    made = dataclasses.replace(MADE, programs=(bad,), mesh={"model": 7}, unsplit=True)
    for table in tables(made):
        console.print(table)
    for note in notes(made):
        console.print(note, highlight=False)
    text = stream.getvalue()
    assert "0.97" in text  # the speed-up at an acceptance of 0.5
    assert "a MODEL, not a measurement" in text
    assert "FAULT: run: copy f32[2]" in text
    assert "No weight is split over `model`: neither key heads nor widths divide by 7" in text
    assert "Google Cloud documentation, TPU v5e" in text
