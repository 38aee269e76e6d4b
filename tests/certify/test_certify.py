"""Certification passes what is right, and reports faults injected into the shipped code."""

import dataclasses
import importlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import cli
from specjax.certify import STAGES, Certificate, Check, Effort, certify, run, write_figure
from specjax.certify.acceptance import Acceptance, acceptance_tails
from specjax.certify.contexts import Context, contexts_of
from specjax.certify.laws import check_laws, check_proposals
from specjax.certify.pair import Subject
from specjax.certify.texts import check_coupled, check_drift, check_frequencies, check_greedy, check_rows
from specjax.drafts import Model, Ngram
from specjax.sampling import Noise
from specjax.testing import TableLM, enumerate_rule
from specjax.verify import RULES, Rule
from tests.text.tiny import tiny_lm

VERIFY = importlib.import_module("specjax.verify.verify")  # the package has a function of that name
VOCAB, GAMMA = 9, 2
TARGET = TableLM.random(VOCAB, seed=0)
DRAFT = Model(TableLM.random(VOCAB, seed=1))
PROMPTS = [[1, 2, 3, 1, 2], [4, 0], [5, 5, 7]]
CONFIG = specjax.DecodeConfig(max_new_tokens=24, gamma=GAMMA)
SAMPLING = specjax.Sampling(temperature=1.0, top_p=0.95)
EFFORT = Effort(contexts=6, draws=2048, samples=48, sample_tokens=4)


def subject(**changes):
    return Subject.of(TARGET, PROMPTS, dataclasses.replace(CONFIG, **changes), SAMPLING)


@pytest.mark.parametrize("stages", (False, pytest.param(True, marks=pytest.mark.slow)))
def test_what_is_right_passes_and_is_written_down(stages, tmp_path):
    # Settings of each row and settings for all, which stages that pick rows must keep apart.
    sampling = dataclasses.replace(
        SAMPLING,
        top_p=np.array([0.95, 0.9, 1.0]),
        logit_bias=[{1: 0.5}, {}, {3: -1.0}],
        banned_sequences=((7, 8), (6,)),
        frequency_penalty=0.2,
    )
    stop = specjax.Stop(eos_ids=[[8], [], [2, 8]], max_new_tokens=[24, 20, 24])
    arguments = {"config": CONFIG, "sampling": sampling, "stop": stop, "effort": EFFORT, "stages": stages}
    certificate = certify(TARGET, PROMPTS, {"model": DRAFT}, **arguments)
    assert certificate.passed, certificate.failures
    assert {check.stage for check in certificate.checks} == set(STAGES if stages else ("greedy", "law"))
    assert any(check.values.get("accepted") for check in certificate.checks)

    certificate.write_json(tmp_path / "out.json")
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["passed"] is True
    assert len(read["checks"]) == len(certificate.checks)
    assert read["settings"]["config"]["gamma"] == GAMMA
    assert any(0 < check["values"].get("detectable", 0) < 0.5 for check in read["checks"])
    write_figure(certificate, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert len(certificate.table().rows) == len(certificate.checks)


def replacement_from_p(log_p, proposal, noise):
    n_accepted, _ = RULES["token"].apply(log_p, proposal, noise)
    gumbel = noise.replacement_gumbel(log_p.shape[1], log_p.dtype)
    return n_accepted, jnp.argmax(log_p[n_accepted] + gumbel).astype(jnp.int32)


def failed(checks):
    return {check.name.split(",")[0] for check in checks if check.passed is False}


FIRST, JOINT = "first token has the target's law", "first two tokens have the target's law"
EVIDENCE = "no evidence against the law"


def test_a_replacement_drawn_from_p_is_reported(monkeypatch):
    monkeypatch.setitem(RULES, "auto", Rule("auto", replacement_from_p))
    found = failed(check_laws(subject(), "model", DRAFT, contexts=6, draws=2048, level=1e-6))
    assert {FIRST, JOINT, EVIDENCE} <= found


def test_noise_shared_by_draft_and_replacement_is_reported(monkeypatch):
    monkeypatch.setattr(
        Noise, "replacement_gumbel", lambda self, size, dtype: self.proposal_gumbel(0, size, dtype)
    )
    monkeypatch.setitem(RULES, "auto", Rule("auto", lambda *arguments: RULES["block"].apply(*arguments)))
    found = failed(check_laws(subject(), "model", DRAFT, contexts=6, draws=8192, level=1e-6))
    assert EVIDENCE in found
    assert FIRST in found or JOINT in found


@pytest.mark.slow
def test_a_rule_that_accepts_too_little_is_reported(monkeypatch):
    """It keeps the law, and costs speed."""

    def halved(log_p, proposal, noise):
        return RULES["token"].apply(
            log_p, dataclasses.replace(proposal, live=jnp.minimum(proposal.live, 1)), noise
        )

    monkeypatch.setitem(RULES, "auto", Rule("auto", halved))
    found = failed(check_laws(subject(), "model", DRAFT, contexts=6, draws=2048, level=1e-6))
    assert found == {"acceptance is what the rule 'auto' promises"}


def test_greedy_rows_that_keep_everything_are_reported(monkeypatch, fresh_programs):
    def keep_all(processed, proposal):
        likeliest = jnp.argmax(processed, axis=-1).astype(jnp.int32)
        return proposal.live, jnp.take_along_axis(likeliest, proposal.live[:, None], axis=1)[:, 0]

    monkeypatch.setattr(VERIFY, "verify_greedy", keep_all)
    checks = list(check_greedy(subject(), {"model": DRAFT}, stage="greedy"))
    assert not checks[0].passed
    assert "differs from token" in checks[0].found


@pytest.mark.slow
def test_coupled_samples_that_follow_the_draft_are_reported(monkeypatch, fresh_programs):
    monkeypatch.setitem(RULES, "coupled", Rule("coupled", RULES["token"].apply, shares_noise=True))
    assert failed(check_coupled(subject(), {"model": DRAFT}, stage="law"))


def test_a_target_that_forgets_is_reported(fresh_programs):
    """Its cache misses the last accepted token, which no text shows when plain decoding forgets too."""

    class Forgetful(TableLM):
        positional_cache = False  # so that committing is told how much was accepted

        def commit(self, cache, pending, lengths, count):
            rows = jnp.arange(len(lengths))
            return pending.at[rows, lengths + count - 1].set(0)

    forgetful = dataclasses.replace(subject(), target=Forgetful(TARGET.table[...]))
    assert failed(check_rows(forgetful, {"ngram": Ngram()}, stage="greedy"))


def test_a_hole_in_the_drafts_cache_is_reported(monkeypatch, fresh_programs):
    honest = Model.commit

    def skip_one(self, module, carry, proposal, outcome):
        length = outcome.length
        carry = honest(self, module, carry, proposal, outcome)
        return dataclasses.replace(carry, length=jnp.where(length > 90, length - 1, carry.length))

    monkeypatch.setattr(Model, "commit", skip_one)
    assert failed(check_drift(subject(max_new_tokens=200), stage="greedy", level=1e-4))


@pytest.mark.slow
def test_samples_of_another_law_are_reported(monkeypatch, fresh_programs):
    monkeypatch.setitem(
        RULES, "auto", Rule("auto", lambda p, q, noise: (q.live, RULES["token"].apply(p, q, noise)[1]))
    )
    checks = check_frequencies(
        subject(), {"model": DRAFT}, stage="law", samples=200, new_tokens=3, level=1e-6
    )
    assert failed(checks)


def test_a_failing_stage_ends_the_certification(monkeypatch, fresh_programs):
    monkeypatch.setattr(VERIFY, "verify_greedy", lambda processed, proposal: (
        proposal.live, jnp.argmax(processed[:, -1], axis=-1).astype(jnp.int32)))  # fmt: skip
    found = certify(
        TARGET, PROMPTS, {"model": DRAFT}, config=CONFIG, sampling=SAMPLING, effort=EFFORT, stages=True
    )
    assert not found.passed
    assert {check.stage for check in found.checks} == {"short greedy"}
    assert found.skipped == STAGES[1:]


@pytest.mark.parametrize("rule", ("token", "block"))
def test_the_formulas_of_acceptance_are_those_of_the_enumeration(rule):
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(3), 4), rng.dirichlet(np.ones(3), 3)
    exact = enumerate_rule(RULES[rule].apply, lambda text: p[len(text)], lambda text: q[len(text)], 3)
    blocks = np.stack(np.meshgrid(*[range(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    weights = np.prod(q[np.arange(3), blocks], axis=1)
    context = Context(p, q, blocks[0], 3)
    assert weights @ acceptance_tails(RULES[rule], context, blocks).sum(axis=1) == pytest.approx(
        exact.expected_accepted, abs=1e-9
    )


def test_a_reduced_context_keeps_the_likeliest_tokens_apart():
    context = contexts_of(subject(), DRAFT, 1)[0]
    small = context.reduced(4)
    assert small.p.shape == (GAMMA + 1, 5)
    assert small.q.shape == (GAMMA, 5)
    np.testing.assert_allclose(small.p.sum(axis=1), 1)
    assert context.p[0].max() in small.p[0]
    assert small.p[0, -1] == pytest.approx(1 - small.p[0, :-1].sum())


@pytest.mark.slow
def test_a_draft_that_misstates_its_law_is_reported(fresh_programs):
    """In one of its later slots, where samples of a few tokens would not show it."""

    class Misstating(Model):
        def propose(self, module, carry, context):
            proposal, carry = super().propose(module, carry, context)
            log_q = proposal.log_q.at[:, 1].set(jnp.roll(proposal.log_q[:, 1], 1, axis=-1))
            return dataclasses.replace(proposal, log_q=log_q), carry

    promise = "the draft draws from the law that it states"
    for draft, expected in ((DRAFT, set()), (Misstating(DRAFT.module), {promise})):
        checks = list(check_proposals(subject(), "model", draft, seeds=30, level=1e-6))
        assert [check.name for check in checks] == [promise]
        assert checks[0].values["draws"] > 100
        assert failed(checks) == expected


def test_what_never_happened_is_not_called_right():
    checks = list(check_greedy(subject(max_new_tokens=1), {"model": DRAFT}, stage="greedy"))
    assert checks[0].passed is None
    certificate = Certificate(settings={}, checks=(checks[0],))
    assert not certificate.passed
    assert certificate.untested == (checks[0],)


def test_acceptance_of_laws_that_nearly_agree_raises_no_alarm():
    """A rejection in ten thousand rounds: the counts are far from normal."""
    rng = np.random.default_rng(8)
    tails = np.full((65_536, 4), 1 - 1e-5) ** np.arange(1, 5)
    alarms = 0
    for _ in range(50):
        accepted = np.full(len(tails), 4)
        rejected = rng.random(len(tails)) < 4e-5
        accepted[rejected] = rng.integers(0, 4, rejected.sum())
        alarms += Acceptance().plus(accepted, tails).p_value < 1e-4
    assert alarms == 0
    few = np.zeros(len(tails)) + 3.9
    assert Acceptance().plus(few, tails).p_value < 1e-6


@pytest.mark.parametrize(
    "arguments, message",
    (
        ({"prompts": []}, "prompts has 0 rows"),
        ({"prompts": [[1], []]}, "none of them empty"),
        ({"drafts": {}}, "drafts is empty"),
        ({"config": specjax.DecodeConfig(gamma=0)}, "gamma is 0; expected at least 1"),
        ({"sampling": specjax.Sampling()}, r"temperature is 0.0; expected above 0"),
        ({"prompts": [[1] * 30], "config": specjax.DecodeConfig(capacity=20)}, "capacity"),
    ),
)
def test_what_cannot_be_certified_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        certify(**{"target": TARGET, "prompts": PROMPTS, "drafts": {"model": DRAFT}} | arguments)


@pytest.fixture
def command(monkeypatch, capsys):
    """`command(*arguments)`: exit code and stderr of `specjax certify` with a tiny model."""
    monkeypatch.setattr(run, "load", lambda name, dtype: tiny_lm(1) if name == "small" else tiny_lm())
    small = ["--max-new-tokens", "6", "--gamma", "2", "--contexts", "2", "--draws", "256", "--samples", "8"]

    def command(*arguments):
        return cli.main(["certify", *small, *map(str, arguments)]), capsys.readouterr().err

    return command


@pytest.mark.slow
def test_the_command_certifies_a_pair(command, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n{"prompt": "a b a b"}\n')
    code, err = command("--jsonl", prompts, "--draft", "ngram", "--draft", "small")
    assert code == 0
    assert "certified" in err


def test_the_command_writes_its_files(command, monkeypatch, tmp_path):
    given = {}
    check = Check(stage="law", name="a promise", draft="ngram", passed=True, found="was kept")
    certificate = Certificate(settings={}, checks=(check,))

    def certify(target, prompts, drafts, **settings):
        given.update(prompts=prompts, drafts=drafts, **settings)
        return certificate

    monkeypatch.setattr(run, "certify", certify)
    files = ("--json", tmp_path / "out.json", "--figure", tmp_path / "out.png")
    code, err = command(
        "hello", "--draft", "ngram", "--draft", "self", "--draft", "small", "--stages", *files
    )
    assert code == 0
    assert "certified" in err
    assert json.loads((tmp_path / "out.json").read_text())["passed"] is True
    assert (tmp_path / "out.png").exists()
    assert list(given["drafts"]) == ["ngram", "self", "small"]
    assert given["prompts"] == [tiny_lm().encode_chat("hello")]
    assert given["stages"]
    assert (given["config"].gamma, given["effort"].draws, given["sampling"].temperature) == (2, 256, 1.0)


def test_the_command_fails_when_a_check_does(command, monkeypatch):
    check = Check(stage="law", name="a promise", draft="ngram", passed=False, found="was broken")
    certificate = Certificate(settings={}, checks=(check,))
    monkeypatch.setattr(run, "certify", lambda *arguments, **settings: certificate)
    code, err = command("hello")
    assert code == 1
    for part in ("a promise", "was broken", "FAILED: 1 check"):
        assert part in err


@pytest.mark.parametrize(
    "arguments, message",
    (
        (("hello", "--temperature", "0"), "temperature is 0.0; expected above 0"),
        (("hello", "--draws", "0"), "draws is 0; expected 1 to"),
        (("--jsonl", "missing.jsonl"), "missing.jsonl"),
        (("hello", "--json", "no/folder/out.json"), "there is no folder no/folder"),
        (("hello", "--figure", "out.gif"), "out.gif is no figure; expected .png"),
        (("hello", "--draft", "none"), "--draft is none; expected a draft"),
    ),
)
def test_commands_that_make_no_sense_are_refused(command, arguments, message):
    code, err = command(*arguments)
    assert code == 2
    assert message in err
