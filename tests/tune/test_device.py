"""The parts of the device check: on whatever runs the tests, and that its checks can fail."""

import importlib.util
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.bench.synthetic import LABEL
from specjax.decoding import Decoder
from specjax.drafts import Model
from specjax.testing import TableLM
from specjax.tune import device

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "device_check.py"
VOCAB, BATCH = 12, 4
CASE = device.Case(
    target=TableLM.random(VOCAB, seed=0),
    draft=TableLM.random(VOCAB, seed=1),
    rates=(0.9, 0.5),
    prompt_width=4,
    new_tokens=16,
    repeats=2,
    seconds=0.005,
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("device_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def greedy_state():
    decoder = Decoder(CASE.target, Model(CASE.draft), CASE.config)
    return CASE.start(decoder, BATCH, temperature=0.0)


def test_a_script_without_time_says_what_is_missing(script, tmp_path, capsys):
    assert script.main(["--quick", "--budget", "0", "--batches", "3", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "device_check.json").read_text())
    assert report["parts"] == {}
    names = ("prefill", "memory", "parts", "speed", "host gap")
    assert report["missing"] == ["law of a small model", *(f"{name}, batch 3" for name in names)]
    assert report["acceptance"] == LABEL
    assert LABEL in out
    assert "left out for lack of time" in out
    assert (tmp_path / "device_check.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_whole_script(script, tmp_path):
    assert script.main(["--quick", "--budget", "600", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "device_check.json").read_text())
    assert report["missing"] == []
    assert {name.partition(",")[0] for name in report["parts"]} == {
        *("law of a small model", "prefill", "memory", "parts of a round", "speed"),
        *("host gap", "greedy text"),
    }
    assert report["parts"]["speed, batch 4"]["acceptance"] == LABEL
    assert report["parts"]["greedy text, batch 4"]["passed"] is True


@pytest.mark.slow
def test_measured_parts_make_a_speed(script):
    budget = script.Budget(600)
    script.check_batch(CASE, 1, budget)
    speed = budget.found["speed, batch 1"]
    parts = budget.found["parts of a round, batch 1"]
    assert all(value > 0 for value in parts.values())
    assert 0 < speed["measured_low"] <= speed["measured_speedup"] <= speed["measured_high"]
    assert speed["predicted_speedup"] > 0
    assert 1 <= speed["tokens_per_round"] <= 3
    assert speed["acceptance"] == LABEL
    memory = budget.found["memory, batch 1"]
    assert memory["planned_peak_gb"] > memory["weights_gb"] > 0
    assert budget.found["host gap, batch 1"]["round_ms"] > 0


def test_a_part_that_would_not_fit_is_not_started(script):
    budget = script.Budget(600)
    budget._longest = 700.0
    budget.run("too long", lambda: pytest.fail("was started"))
    assert budget.missing == ["too long"]


@pytest.mark.slow
def test_greedy_text_is_plain_decodings(greedy_state):
    found = device.check_greedy(CASE, greedy_state)
    assert found["passed"]
    assert found["rows_equal"] == BATCH
    assert 0 < found["accepted"] < found["drafted"]


@pytest.mark.slow
def test_another_greedy_text_is_found(greedy_state, monkeypatch):
    result = Decoder.result

    def wrong(decoder, state):
        out = result(decoder, state)
        if np.any(np.asarray(out.stats.drafted)):
            object.__setattr__(out, "tokens", out.tokens.at[1, 3].add(1))
        return out

    monkeypatch.setattr(Decoder, "result", wrong)
    found = device.check_greedy(CASE, greedy_state)
    assert not found["passed"]
    assert (found["rows_equal"], found["differs_at"]) == (BATCH - 1, 3)
    assert found["margin"] > found["noise"]


def test_samples_of_another_law_are_found(monkeypatch):
    assert device.check_law(1 << 10)["passed"]
    law = device.sequence_law
    monkeypatch.setattr(device, "sequence_law", lambda *arguments: np.roll(law(*arguments), 1))
    assert not device.check_law(1 << 10)["passed"]


def test_shapes_are_chosen_by_the_memory_of_the_device(script, monkeypatch):
    def chosen(gigabytes):
        limit = {} if gigabytes is None else {"bytes_limit": int(gigabytes * 1e9)}
        monkeypatch.setattr(device, "device_memory", lambda: limit)
        return script.choose_shapes(quick=False)[0]

    assert chosen(141) == "Llama-3.1-8B + Llama-3.2-1B"
    assert chosen(16) == "SmolLM2-1.7B + SmolLM2-135M"
    assert chosen(None).startswith("SmolLM2-135M + ")
    assert script.weight_bytes(script.choose_shapes(quick=True)[1], jnp.float32) > 0
