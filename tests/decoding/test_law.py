"""Sampled text has exactly the target's law: joint chi-square tests against the closed form."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import specjax
from specjax.drafts import Fallback, LayerSkip, Model, Ngram, NoDraft, Recycling
from specjax.sampling import Automaton
from specjax.testing.table_lm import LayeredTableLM, TableLM, sequence_law
from tests.reference import softmax, table_log_law

SAMPLES = 65_536
TOKENS = 3
VOCAB = 5
PROMPT = (3, 1, 4, 3, 1)
LEVEL = 1e-5  # of one test; false alarms of the whole file stay below one in a thousand

SLOW = pytest.mark.slow
# The block rule looks at most things; the others share what is around it.
EVERY_RULE = ("block", *(pytest.param(rule, marks=SLOW) for rule in ("token", "coupled")))

DRAFT = TableLM.random(VOCAB, seed=1)
# Its first layer is the draft, so that there are layers to skip.
TABLES = np.stack([DRAFT.table[...], TableLM.random(VOCAB, seed=0).table[...] - DRAFT.table[...]])
TARGET = LayeredTableLM(TABLES)

FILTERS = {
    "none": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.15},
    "repetition": {"repetition_penalty": 1.6},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 1.1},
    "bias": {"logit_bias": {2: 1.5}, "banned_tokens": [0]},
    "all": {
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.7,
        "logit_bias": {2: 1.0},
    },
}


def draw(
    draft, gamma, sampling, draft_sampling=None, *, samples=SAMPLES, ragged=False, processors=(), **config
):
    """Outcomes int[samples]: the index of each row's tokens among all continuations."""
    config = {"max_new_tokens": TOKENS, "rule": "token"} | config
    prompts = np.tile(np.array(PROMPT, np.int32), (samples, 1))
    lengths = np.full(samples, len(PROMPT), np.int32)
    if ragged:  # the last tokens of the prompt, two to all of them, in turn
        lengths = np.arange(samples, dtype=np.int32) % (len(PROMPT) - 1) + 2
        for length in range(2, len(PROMPT)):
            prompts[lengths == length, :length] = PROMPT[-length:]
    out = specjax.generate(
        TARGET,
        prompts,
        lengths,
        draft=draft,
        config=specjax.DecodeConfig(gamma=gamma, **config),
        sampling=specjax.Sampling(seed=gamma, **sampling),
        draft_sampling=draft_sampling and specjax.Sampling(**draft_sampling),
        processors=processors,
    )
    assert not np.any(out.violations)
    tokens = np.asarray(out.tokens)
    return tokens @ VOCAB ** np.arange(tokens.shape[1] - 1, -1, -1), out


def p_value(outcomes, settings, tokens=TOKENS, constraint=None):
    """Of a chi-square test of the outcomes against the closed form; 0 where the impossible happened."""
    law = table_log_law(np.asarray(TARGET.table[...]), settings, PROMPT)
    law = sequence_law(constraint(law) if constraint else law, PROMPT, tokens)
    counts = np.bincount(outcomes, minlength=law.size)
    if counts[law == 0].any():
        return 0.0
    expected = law * len(outcomes)
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue


TEMPERATURES, GAMMAS = (0.3, 1.0, 2.0), (2, 1, 4)


@pytest.mark.parametrize(
    "gamma, temperature, filters",
    [
        # In `make test` every filter has gamma 2 and one of the temperatures, in turn.
        pytest.param(
            gamma,
            temperature,
            filters,
            marks=() if gamma == 2 and temperature == TEMPERATURES[index % 3] else SLOW,
        )
        for gamma in GAMMAS
        for temperature in TEMPERATURES
        for index, filters in enumerate(FILTERS)
    ],
)
def test_model_draft_keeps_the_law(gamma, temperature, filters):
    settings = {"temperature": temperature, **FILTERS[filters]}
    outcomes, out = draw(Model(DRAFT), gamma, settings)
    assert p_value(outcomes, settings) > LEVEL
    assert np.sum(out.stats.accepted) > 0
    assert np.sum(out.stats.accepted) < np.sum(out.stats.drafted)


# A search for two tokens, and where they are new, the first layer as far as it is sure.
MIXED = Fallback(Ngram(min_match=2), LayerSkip((0,)))
OTHER_DRAFTS = {
    "none": NoDraft(),
    "wide": NoDraft(2),
    "ngram": Ngram(),
    "self": Model(TARGET),
    "layers": LayerSkip((0,)),
    "recycling": Recycling(),
    "ngram or model": Fallback(Ngram(min_match=2), Model(DRAFT)),
}
POLICIES = ("fixed", "confidence:0.5", "entropy:1", "adaptive", "batch-adaptive")


@pytest.mark.parametrize(
    "draft, config",
    (
        pytest.param(Ngram(), {"verify_widths": (2,)}, id="ngram of two widths"),
        pytest.param(MIXED, {"rule": "block", "policy": "confidence:0.5"}, id="ngram or sure layers"),
        *(
            pytest.param(draft, {"rule": rule, "policy": policy}, id=f"{name}-{rule}-{policy}", marks=SLOW)
            for name, draft in OTHER_DRAFTS.items()
            for rule in ("token", "block", "coupled")
            for policy in (POLICIES if draft.slots(2) else POLICIES[:1])
        ),
    ),
)
def test_other_drafts_keep_the_law(draft, config):
    settings = {"temperature": 1.0, **FILTERS["all"]}
    outcomes, _ = draw(draft, 2, settings, **config)
    assert p_value(outcomes, settings) > LEVEL


# Which tokens may follow, by state, and the next state. Every state has a way on.
TRANSITIONS = np.array([[1, -1, 2, 1, -1], [-1, 0, 2, -1, 0], [2, 1, -1, 2, 1]])


def constrained(law):
    """The law of texts that the automaton of `TRANSITIONS` accepts."""

    def masked(text):
        state = 0
        for chosen in text[len(PROMPT) :]:
            state = TRANSITIONS[state, chosen] if state >= 0 else -1
        if state < 0:
            return np.full(VOCAB, -np.inf)
        log_p = np.where(TRANSITIONS[state] >= 0, law(text), -np.inf)
        return log_p - np.log(np.exp(log_p).sum())

    return masked


LONG_TEXTS = [
    ("block", 3, "automaton", SAMPLES),
    *(
        pytest.param(*case, 400_000, marks=SLOW)
        for case in itertools.product(
            ("token", "block", "coupled"), (1, 2, 3, 4), ("none", "frequency", "automaton")
        )
    ),
]


@pytest.mark.parametrize("rule, gamma, kind, samples", LONG_TEXTS)
def test_every_rule_keeps_the_law_of_longer_texts(rule, gamma, kind, samples):
    """Four tokens take several rounds: cache, rollback and budget are part of what is tested."""
    settings = {"temperature": 1.0} | FILTERS.get(kind, {})
    outcomes, out = draw(
        Model(DRAFT),
        gamma,
        settings,
        samples=samples,
        ragged=True,
        processors=(Automaton.of_transitions(TRANSITIONS),) if kind == "automaton" else (),
        rule=rule,
        max_new_tokens=4,
    )
    assert p_value(outcomes, settings, 4, constrained if kind == "automaton" else None) > 1e-6
    assert 0 < np.sum(out.stats.accepted) < np.sum(out.stats.drafted)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_self_draft_is_always_accepted(rule):
    _, out = draw(Model(TARGET), 2, {"temperature": 1.0, **FILTERS["all"]}, rule=rule)
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)


@pytest.mark.parametrize(
    "vocab_size", (VOCAB - 2, *(pytest.param(size, marks=SLOW) for size in (VOCAB, VOCAB + 2)))
)
def test_acceptance_is_what_the_laws_have_in_common(vocab_size):
    """A draft token that follows accepted ones is accepted with probability sum_x min(p, q) = 1 - TV.

    Ids that the draft lacks have q = 0 and keep their place in the text; the draft, which reads its last id
    for them, renormalises without the ids that only it has.
    """
    settings, samples, draft = {"temperature": 1.0}, SAMPLES, TableLM.random(vocab_size, seed=1)
    outcomes, out = draw(Model(draft), 2, settings)
    assert p_value(outcomes, settings) > LEVEL

    def common(text):
        p = np.exp(table_log_law(np.asarray(TARGET.table[...]), settings, PROMPT)(text))
        seen = np.minimum(text[-2:], vocab_size - 1)
        q = softmax(np.asarray(draft.table[...], np.float64)[tuple(seen)][:VOCAB])
        return np.minimum(p, np.pad(q, (0, max(VOCAB - vocab_size, 0))))

    # A rejection at the first slot leaves a budget of two tokens, and with it one more draft token.
    stayed = np.asarray(out.stats.drafted) == 2
    both = np.asarray(out.stats.accepted_at)[:, 1] == 1
    np.testing.assert_array_equal(out.stats.drafted, np.where(stayed, 2, 3))
    assert np.all(stayed[both])
    first = common(PROMPT)
    second = first @ [common((*PROMPT, token)).sum() for token in range(VOCAB)] / first.sum()
    for found, of, expected in ((stayed.sum(), samples, first.sum()), (both.sum(), stayed.sum(), second)):
        assert stats.binomtest(int(found), int(of), expected).pvalue > LEVEL


def test_rows_keep_their_own_law_under_a_draft_with_other_settings():
    names = ("none", "top_k", "top_p", "all")
    group = np.arange(SAMPLES) % len(names)

    def spread(key, default, order):
        return np.array([FILTERS[name].get(key, default) for name in order])[group]

    def rows(order):
        filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        settings = {key: spread(key, default, order) for key, default in filters.items()}
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        settings |= {key: spread(key, float(key.startswith("rep")), order) for key in penalties}
        return settings | {"temperature": np.array([0.3, 1.0, 2.0, 0.7])[group]}

    # Every row's draft filters as another row's target does; one group of drafts is greedy.
    draft_sampling = rows(names[1:] + names[:1]) | {"temperature": np.array([1.0, 0.0, 0.5, 1.5])[group]}
    outcomes, _ = draw(Model(DRAFT), 2, rows(names), draft_sampling)
    for index, (name, temperature) in enumerate(zip(names, (0.3, 1.0, 2.0, 0.7), strict=True)):
        settings = {"temperature": temperature} | FILTERS[name]
        settings = {key: value for key, value in settings.items() if key != "logit_bias"}
        assert p_value(outcomes[group == index], settings) > LEVEL, name


def test_a_draft_that_breaks_down_midway_keeps_the_law():
    """Logits that turn NaN after some tokens cut the row's live tokens there, and nothing else."""
    table = np.array(DRAFT.table[...])
    table[:, 2] = np.nan
    settings = {"temperature": 1.0}
    outcomes, out = draw(Model(TableLM(table)), 4, settings)
    assert p_value(outcomes, settings) > LEVEL
    failures = np.asarray(out.stats.draft_failures)
    assert 0 < np.mean(failures > 0) < 1
    assert np.sum(np.asarray(out.stats.accepted)[failures > 0]) > 0


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_target_that_breaks_down_midway_keeps_the_law_of_what_came_before(rule):
    """After token 2 the logits are NaN: rows end there with an error, as often as plain decoding would."""
    table, drafts = np.array(TARGET.table[...]), np.array(DRAFT.table[...])
    table[:, 2] = np.nan
    drafts[:, :, 2] += 4.0  # proposed more often than it should be, so that it must be rejected at times
    p, q = (np.exp(table_log_law(t, {"temperature": 1.0}, PROMPT)(PROMPT)) for t in (table, drafts))
    assert q[2] > p[2]
    out = specjax.generate(
        TableLM(table),
        np.tile(np.array(PROMPT, np.int32), (SAMPLES, 1)),
        np.full(SAMPLES, len(PROMPT), np.int32),
        draft=Model(TableLM(drafts)),
        config=specjax.DecodeConfig(max_new_tokens=TOKENS, gamma=3, rule=rule),
        sampling=specjax.Sampling(temperature=1.0),
    )
    tokens, lengths = np.asarray(out.tokens), np.asarray(out.lengths)
    broke = np.argmax(tokens == 2, axis=1) + 1
    broke[~np.any(tokens == 2, axis=1)] = TOKENS
    np.testing.assert_array_equal(lengths, broke)
    last = np.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0]
    failed = np.asarray(out.finish_reasons) == specjax.FinishReason.ERROR
    np.testing.assert_array_equal(failed, (last == 2) & (lengths < TOKENS))
    # Texts that break are counted as if they went on with zeros.
    law = np.zeros((VOCAB,) * TOKENS)
    log_law = table_log_law(np.asarray(TARGET.table[...]), {"temperature": 1.0}, PROMPT)
    whole = sequence_law(log_law, PROMPT, TOKENS)
    for text, probability in np.ndenumerate(whole.reshape(law.shape)):
        end = text.index(2) + 1 if 2 in text else TOKENS
        law[text[:end] + (0,) * (TOKENS - end)] += probability
    counts = np.bincount(tokens @ VOCAB ** np.arange(TOKENS - 1, -1, -1), minlength=law.size)
    possible = law.ravel() > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], law.ravel()[possible] * SAMPLES).pvalue > LEVEL


@SLOW
@pytest.mark.parametrize("rule", EVERY_RULE[:2])
def test_a_token_behind_which_the_target_breaks_down_keeps_its_probability(rule):
    """The draft proposes token 0 far too often, and nothing can be drawn after it.

    The first round has three live tokens: token 0 is met as the last of them, and with one and two behind it.
    """
    p, q = np.array([0.1, 0.6, 0.3], np.float32), np.array([0.8, 0.1, 0.1], np.float32)
    target, draft = (np.tile(np.log(law), (3, 3, 1)) for law in (p, q))
    target[:, 0] = np.nan
    samples = 20_000
    out = specjax.generate(
        TableLM(target),
        np.ones((samples, 2), np.int32),
        np.full(samples, 2),
        draft=Model(TableLM(draft)),
        config=specjax.DecodeConfig(max_new_tokens=4, gamma=3, rule=rule),
        sampling=specjax.Sampling(temperature=1.0),
    )
    assert (
        stats.chisquare(
            np.bincount(np.asarray(out.tokens)[:, 0], minlength=3), np.array([0.1, 0.6, 0.3]) * samples
        ).pvalue
        > LEVEL
    )


def test_models_that_answer_in_half_precision_keep_the_law():
    """In bfloat16 one in 128 uniform numbers would be the largest: ties, which the lowest ids win."""
    uniform = TableLM(jnp.zeros((64, 64, 64), jnp.bfloat16))
    samples = 8_000
    out = specjax.generate(
        uniform,
        np.zeros((samples, 1), np.int32),
        np.ones(samples, np.int32),
        draft=Model(uniform),
        config=specjax.DecodeConfig(max_new_tokens=2, gamma=1),
        sampling=specjax.Sampling(temperature=1.0),
    )
    # So the first token is the draft's own, and the second a bonus token.
    np.testing.assert_array_equal(out.stats.accepted, 1)
    for tokens in np.asarray(out.tokens).T:
        assert stats.chisquare(np.bincount(tokens, minlength=64)).pvalue > LEVEL
