"""Tuning end to end with tiny models, and what its figures are made of."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import cli
from specjax.bench.timing import median_interval
from specjax.drafts import Model, Ngram
from specjax.pairs import read_pair
from specjax.testing import TableLM, perturbed
from specjax.tune import Components, Effort, Outcome, RoundTime, Setting, Tuning, command, tune, tuner
from specjax.tune import components as parts
from specjax.tune.setting import groups, typical
from tests.text.tiny import tiny_lm

VOCAB, GAMMA, NEW = 12, 3, 24
TARGET = TableLM.random(VOCAB, seed=0)
DRAFT = Model(perturbed(TARGET, 1.0))
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
CONFIG = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA)
DECODER = specjax.Decoder(TARGET, DRAFT, CONFIG)
[GROUP] = groups(PROMPTS, 3, 4)


def outcome(measured, *, batch=1, gamma=2, tokens=2.0, plain=1.0):
    """Predicted: tokens / 1.25 times as fast."""
    return Outcome(
        setting=Setting(draft="ngram", gamma=gamma, batch=batch),
        time=RoundTime(draft=0.1, verify=1.0, overhead=0.15),
        tokens=tokens,
        acceptance=(0.5, None),
        plain=plain,
        measured=None if measured is None else median_interval(measured),
        measured_tokens=tokens,
    )


def tuning(*outcomes):
    components = Components(
        batch=1, plain=1.0, verify={3: 1.0}, overhead={2: 0.15}, draft={"ngram": {2: 0.1}}
    )
    return Tuning(environment={"device": "x"}, subject={}, components=(components,), outcomes=outcomes)


def test_predictions_are_compared_with_measurements():
    close, far = outcome([1.5, 1.6, 1.7]), outcome([1.2, 1.25, 1.3], gamma=3)
    assert close.predicted == pytest.approx(1.6)
    assert (close.error, close.close) == (pytest.approx(0), True)
    assert (far.error, far.close) == (pytest.approx(0.28), False)
    found = tuning(close, far, outcome(None, gamma=4))
    assert (found.close, len(found.measured)) == (1, 2)
    assert "1 of 2 settings" in " ".join(found.notes())
    assert [len(table.rows) for table in found.tables()] == [1, 3]


def test_the_fastest_setting_that_pays_is_recommended():
    found = tuning(
        outcome([1.1, 1.2] * 3), outcome([1.4, 1.5] * 3, gamma=3), outcome([0.9, 2.5] * 3, gamma=4)
    )
    assert found.best(1).setting.gamma == 3
    assert found.advice(1).startswith("batch 1: use ngram gamma 3")


def test_what_does_not_surely_pay_is_not_recommended():
    found = tuning(outcome([0.9, 1.2] * 3), outcome([0.7, 0.8] * 3, gamma=3))
    assert found.best(1) is None
    assert "do not speculate, as none surely pays" in found.advice(1)
    assert [each.pays for each in found.outcomes] == [None, False]


@pytest.mark.parametrize("turns, sure", ((1, False), (2, False), (4, False), (5, True)))
def test_few_turns_make_nothing_sure(turns, sure):
    """All of two turns lie above the median every fourth time."""
    found = tuning(outcome([1.5] * turns))
    assert (found.outcomes[0].pays is True) == sure
    assert (found.best(1) is not None) == sure
    assert ("not sure" in found.advice(1)) == (not sure)


def test_a_prediction_is_not_recommended_as_if_it_were_measured():
    found = tuning(outcome(None))
    assert found.best(1) is None
    assert found.advice(1).startswith("batch 1: not measured; the best of 1 settings, ngram gamma 2 ")
    assert "(predicted)" in found.advice(1)
    assert "do not speculate" in tuning(outcome(None, tokens=1.2)).advice(1)


def test_breakeven():
    """1.25 tokens a round: with one draft token, an acceptance of a quarter."""
    assert outcome(None, gamma=1).breakeven == pytest.approx(0.25)
    assert outcome(None, gamma=1, plain=0.5).breakeven is None


def test_predictions_come_from_components_and_counts(monkeypatch):
    """Of the longest draft the very rounds were recorded; those of the others follow from them."""
    costs = {"draft": 0.1, "verify": 1.0, "round": 1.5}
    monkeypatch.setattr(
        tuner,
        "measure",
        lambda loops, **_: {n: [costs[n.split()[0]] * int(n.split()[-1])] * 3 for n in loops},
    )
    gammas = range(1, GAMMA + 1)
    settings = [Setting(draft="model", gamma=gamma, batch=3) for gamma in gammas]
    found = tune(TARGET, PROMPTS, {"model": DRAFT}, settings, config=CONFIG, effort=Effort(repeats=0))
    [components] = found.components
    assert components.plain == 1.5
    assert components.draft == {"model": {gamma: pytest.approx(0.1 * gamma) for gamma in gammas}}
    state = DECODER.run_rounds(GROUP.start(DECODER, specjax.Sampling()))
    rounds = np.max(np.asarray(state.stats.rounds))
    for outcome in found.outcomes:
        size = outcome.setting.gamma + 1
        assert outcome.plain == components.plain
        assert outcome.time.draft == pytest.approx(0.1 * (size - 1))
        assert outcome.time.verify == pytest.approx(size)
        assert outcome.time.overhead == pytest.approx(0.5 * size)
        assert outcome.predicted == pytest.approx(outcome.tokens * outcome.plain / outcome.time.total)
        assert outcome.measured is None
    assert [o.tokens for o in found.outcomes] == sorted(o.tokens for o in found.outcomes)
    assert found.outcomes[-1].tokens == pytest.approx(NEW / rounds)


def test_loops_run_every_step_and_leave_the_text_as_it_was():
    """A step takes what the one before it found; after all loops, decoding goes on as if none had run."""

    def halfway():
        return DECODER.run_rounds(GROUP.start(DECODER, specjax.Sampling()), 3)

    before = jax.device_get(halfway())
    expected = np.asarray(DECODER.result(DECODER.run_rounds(halfway())).tokens)
    bench = parts.Bench(TARGET, DRAFT, CONFIG, halfway())
    bench.scoring(GAMMA + 1)(GAMMA + 1)
    tokens = np.asarray(bench._state.tokens)
    for row, (length, prompt) in enumerate(zip(before.length, before.prompt_length, strict=True)):
        found, done = tokens[row, length : length + GAMMA + 1], length - prompt
        np.testing.assert_array_equal(found, expected[row, done : done + GAMMA + 1])
    bench.proposing(GAMMA)(3)
    bench.plain_round(GAMMA + 1)(3)
    state = bench._state
    np.testing.assert_array_equal(state.length, before.length)
    behind = np.arange(tokens.shape[1]) >= before.length[:, None]
    state = dataclasses.replace(state, tokens=jnp.where(behind, 0, state.tokens))
    np.testing.assert_array_equal(DECODER.result(DECODER.run_rounds(state)).tokens, expected)


def test_groups_repeat_prompts_and_keep_their_seeds():
    made = groups(PROMPTS, 2, 6)
    assert [group.indices for group in made] == [(0, 1), (2, 0)]
    np.testing.assert_array_equal(made[1].lengths, [4, 3])
    np.testing.assert_array_equal(made[1].tokens[0], [6, 7, 8, 9, 0, 0])
    np.testing.assert_array_equal(made[1].seeded(specjax.Sampling(seed=5)).seed, [7, 5])
    assert typical(groups([[1], [1] * 9, [1] * 4], 1, 9)).indices == (2,)


@pytest.mark.parametrize(
    "settings, changes, message",
    (
        ([], {}, "settings is empty"),
        ([Setting(draft="x", gamma=1)], {}, "no draft of that name"),
        ([Setting(draft="ngram", gamma=0)], {}, "gamma and batch to be at least 1"),
        ([Setting(draft="ngram", gamma=2, verify_widths=(9,))], {}, "verify_widths"),
        ([Setting(draft="ngram", gamma=2)] * 2, {}, "twice"),
        ([Setting(draft="ngram", gamma=2)], {"prompts": [[]]}, "prompts has 1 rows"),
        ([Setting(draft="ngram", gamma=2)], {"sampling": specjax.Sampling(seed=[1, 2])}, "sampling.seed"),
        ([Setting(draft="ngram", gamma=2)], {"config": specjax.DecodeConfig(max_new_tokens=1)}, "at least 2"),
    ),
)
def test_what_makes_no_sense_is_named(settings, changes, message):
    arguments = {"prompts": PROMPTS, "drafts": {"ngram": Ngram()}, "settings": settings} | changes
    with pytest.raises(ValueError, match=message):
        tune(TARGET, **arguments)


TINY = ("--max-new-tokens", "12", "--gammas", "2", "--repeats", "1")


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setattr(command, "load", lambda name, dtype: tiny_lm(1))  # repeats itself
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


@pytest.mark.usefixtures("_tiny")
def test_the_command_writes_what_it_found(tmp_path, capsys):
    files = {name: tmp_path / f"tuning.{name}" for name in ("json", "png", "toml")}
    outputs = ("--json", files["json"], "--figure", files["png"], "--out", files["toml"])
    code = cli.main(["tune", "hello", *TINY, *map(str, outputs), "--quick"])
    err = capsys.readouterr().err
    assert code == 0
    for part in ("speed-up over plain decoding", "batch 1: ", "decode time only", "of 1 settings"):
        assert part in err
    written = json.loads(files["json"].read_text())
    [outcome] = written["outcomes"]
    assert outcome["setting"] == {"draft": "ngram", "gamma": 2, "verify_widths": [2], "batch": 1}
    assert outcome["measured"]["median"] > 0
    assert outcome["tokens"] == outcome["measured_tokens"] > 1
    assert outcome["error"] == pytest.approx(outcome["predicted"] / outcome["measured"]["median"] - 1)
    assert written["subject"]["dtype"] == "float32"
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    pair = read_pair(files["toml"])
    assert pair.speculate == (written["recommended"]["1"] is not None)
    assert not pair.speculate  # too few turns
    assert (pair.target, pair.max_new_tokens) == ("smollm2-135m-instruct", 12)
    assert (pair.draft, pair.gamma, pair.verify_widths) == ("ngram", 2, (2,))
    assert files["toml"].read_text().startswith("# Written by specjax tune")


@pytest.mark.usefixtures("_tiny")
def test_ctrl_c_leaves_what_was_found(tmp_path, capsys, monkeypatch):
    def interrupted(arms, repeats, on_turn):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "interleave", interrupted)
    path = tmp_path / "found.json"
    assert cli.main(["tune", "hello", *TINY, "--quick", "--json", str(path)]) == 130
    assert "interrupted" in capsys.readouterr().err
    written = json.loads(path.read_text())
    assert written["interrupted"] is True
    assert [outcome["measured"] for outcome in written["outcomes"]] == [None]
    assert written["outcomes"][0]["predicted"] > 0


@pytest.mark.usefixtures("_tiny")
def test_an_error_leaves_what_was_found(tmp_path, capsys, monkeypatch):
    """The second batch size runs out of memory; a picture that cannot be drawn costs nothing else."""
    original = tuner._Run.add_batch

    def add_batch(run, batch, settings):
        if batch == 2:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        original(run, batch, settings)

    def write_figure(tuning, path):
        raise TypeError("no picture")

    monkeypatch.setattr(tuner._Run, "add_batch", add_batch)
    monkeypatch.setattr(command, "write_figure", write_figure)
    path, out = tmp_path / "found.json", tmp_path / "pair.toml"
    files = ("--json", path, "--figure", tmp_path / "x.png", "--out", out)
    assert cli.main(["tune", "hello", *TINY, "--quick", "--batch", "1", "2", *map(str, files)]) == 1
    err = capsys.readouterr().err
    assert "error: RESOURCE_EXHAUSTED" in err
    assert "x.png was not written: no picture" in err
    written = json.loads(path.read_text())
    assert written["error"] == "RESOURCE_EXHAUSTED"
    assert [outcome["setting"]["batch"] for outcome in written["outcomes"]] == [1]
    assert not read_pair(tmp_path / "pair-batch1.toml").speculate


@pytest.mark.parametrize(
    "arguments, message",
    (
        (["--gammas", "0"], "--gammas is (0,)"),
        (["--gammas", "2", "2"], "--gammas is (2, 2)"),
        (["--batch", "0"], "--batch is (0,)"),
        (["--repeats", "-1"], "--repeats is -1"),
        (["--count", "0"], "--count is 0"),
        (["--draft", "none"], "without none"),
        (["--out", "pair.json"], "expected a .toml file"),
        (["--json", "/no/such/folder/x.json"], "there is no folder"),
        (["--json", "/"], "/ cannot be written: it is a folder"),
        (["--figure", "x.jpg"], "is no figure"),
        (["--temperature", "-1"], "temperature is -1.0"),
    ),
)
def test_bad_flags_are_refused_before_anything_loads(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(command, "load", None)
    assert cli.main(["tune", "hello", *arguments]) == 2
    assert message in capsys.readouterr().err
