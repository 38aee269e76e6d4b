"""What exact speculative decoding promises: each check(seed) raises AssertionError where it is broken.

A seed chooses models, prompts, settings and noise, all of them traced: one program serves every seed. Checks
go through public functions alone. `CHECKS` holds them by name.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import specjax
from specjax import FinishReason
from specjax.drafts import Fallback, Model, Ngram
from specjax.policies import Adaptive, Confidence
from specjax.sampling import Noise
from specjax.testing import (
    FromLogits,
    Oracle,
    TableLM,
    check_caches,
    enumerate_rule,
    exact_law,
    sequence_law,
    total_variation,
)
from specjax.verify import RULES
from tests import reference

# Fewer slots than the defaults: they cost time to compile.
SLOTS = {"max_eos": 1, "max_stop": 0, "max_stop_len": 1, "max_bias": 0}


def config(**kwargs):
    return specjax.DecodeConfig(**SLOTS | kwargs)


@functools.cache
def rule_under_test(name):
    """The rule as a function of its own: programs are kept for a function, whatever is patched inside."""
    return lambda *args: RULES[name].apply(*args)


def random_law(seed, vocab_size=4):
    """A law for each prefix, of which most exclude a token."""

    @functools.cache
    def law(prefix):
        rng = np.random.default_rng([*seed, len(prefix), *prefix])
        weights = rng.exponential(size=vocab_size)
        if (excluded := rng.integers(vocab_size + 1)) < vocab_size:
            weights[excluded] = 0
        return weights / weights.sum()

    return law


def check_rule(name, seed):
    """One round emits exactly the target's law: every draft and every outcome enumerated, in float64.

    After one of the tokens nothing more is proposed, so that leaves are met at both lengths.
    """
    gamma = 2
    for pair in range(10):
        target, draft = random_law((seed, pair, 0)), random_law((seed, pair, 1))

        def live(drafted, last=pair % 4):
            return 1 if drafted[0] == last else gamma

        outcome = enumerate_rule(rule_under_test(name), target, draft, gamma, live=live)
        error = total_variation(outcome.law, exact_law(target, gamma + 1))
        assert error < 1e-12, f"a total variation of {error:.3g} for pair {pair}"


# Laws of the token after 0, 1 and 2, at the temperature of the check. Target and draft agree here and differ
# there, so that blocks are kept and lost by any of their tokens; top-p excludes one. After token 2 the logits
# of the draft are not finite.
TEMPERATURE = 0.6
LAW_SETTINGS = {"temperature": TEMPERATURE, "top_p": 0.95}
TARGET_LAW = ((0.78, 0.09, 0.13), (0.50, 0.10, 0.40), (0.02, 0.65, 0.33))
DRAFT_LAW = ((0.80, 0.09, 0.11), (0.74, 0.20, 0.06), (np.nan, np.nan, np.nan))
LAW = config(max_new_tokens=4, gamma=3, rule="block")
LAW_SAMPLES = 2560


def law_model(law, seed):
    """A model that has about this law, for each last token, at `TEMPERATURE`."""
    logits = TEMPERATURE * np.log(np.broadcast_to(law, (3, 3, 3)))
    return TableLM((logits + 0.05 * np.random.default_rng(seed).normal(size=logits.shape)).astype(np.float32))


@functools.cache
def expected_law(seed, prompt):
    table = np.asarray(law_model(TARGET_LAW, seed).table[...])
    return sequence_law(reference.table_log_law(table, LAW_SETTINGS, prompt), prompt, LAW.max_new_tokens)


def check_joint_law(seed, prompt, draft, config):
    """Sampled texts have the target's joint law, by chi-square."""
    out = specjax.generate(
        law_model(TARGET_LAW, seed),
        np.tile(np.array(prompt, np.int32), (LAW_SAMPLES, 1)),
        np.full(LAW_SAMPLES, len(prompt)),
        draft=draft,
        config=config,
        sampling=specjax.Sampling(seed=seed * LAW_SAMPLES, **LAW_SETTINGS),
    )
    law = expected_law(seed, prompt)
    places = 3 ** np.arange(LAW.max_new_tokens - 1, -1, -1)
    counts = np.bincount(np.asarray(out.tokens) @ places, minlength=law.size)
    assert counts[law == 0].sum() == 0, "a text that the target never says"
    # Rare texts are counted together, as the approximation by chi-square wants.
    expected = law[law > 0] * LAW_SAMPLES
    counts, rare = counts[law > 0], expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    p_value = stats.chisquare(observed[kept], expected[kept]).pvalue
    assert p_value > 1e-6, f"a p-value of {p_value:.3g}"


def check_law(seed):
    """With a model as draft."""
    check_joint_law(seed, (0, 1), Model(law_model(DRAFT_LAW, 1000 + seed)), LAW)


# The model is sure enough after token 0, not after token 1.
MIXED = dataclasses.replace(LAW, policy=Confidence(0.77))


def check_mixed_drafts(seed):
    """With a search for the last token, and where that is new a model, as long as it is sure.

    The last token of one prompt is new, that of the other is not; later rounds do as the text has it.
    """
    draft = Fallback(Ngram(), Model(law_model(DRAFT_LAW, 1000 + seed)))
    for prompt in ((1, 0), (0, 0)):
        check_joint_law(seed, prompt, draft, MIXED)


VOCAB, GAMMA, WIDTH, NEW = 7, 3, 5, 12


def prompts(rng, batch):
    """Prompts of every length: four as long as can be, one of each shorter length, and so on."""
    lengths = np.resize([*[WIDTH] * 4, *range(1, WIDTH)], batch).astype(np.int32)
    return rng.integers(0, VOCAB, (batch, WIDTH)).astype(np.int32), lengths


def decode_one_by_one(table, prompts, lengths, choose):
    """Texts int[B, NEW], a token at a time: `choose(row, prompt, output, logits float[V])`."""
    texts = np.zeros((len(prompts), NEW), int)
    for row, length in enumerate(lengths):
        prompt, output = prompts[row, :length].tolist(), []
        while len(output) < NEW:
            previous, last = [0, *prompt, *output][-2:]
            output.append(choose(row, prompt, output, table[previous, last]))
        texts[row] = output
    return texts


GREEDY_BATCH = 17


def check_greedy(seed):
    """Greedy rows say what a plain loop says, with penalties, EOS and budgets, next to a sampled row.

    The model likes to repeat itself. The draft knows the text, beyond its end too, and errs at slot 0, 1, 2
    or none. The first and the third four rows use their capacity up; the second four meet an EOS, the last of
    them on the last token of its budget.
    """
    rng = np.random.default_rng(seed)
    tokens, lengths = prompts(rng, GREEDY_BATCH)
    table = (1.5 * rng.normal(size=(VOCAB,) * 3) + 2 * np.eye(VOCAB)).astype(np.float32)
    penalties = {
        "repetition_penalty": rng.choice([1.0, 1.5], GREEDY_BATCH),
        "presence_penalty": rng.choice([0.0, 0.7], GREEDY_BATCH),
        "frequency_penalty": rng.uniform(0.5, 1.5, GREEDY_BATCH),
    }

    def likeliest(row, prompt, output, logits):
        settings = {name: values[row] for name, values in penalties.items()}
        return int(np.argmax(reference.process(logits, prompt, output, settings)))

    texts = decode_one_by_one(table, tokens, lengths, likeliest)
    eos_ids = [[]] * 4 + [[int(text[4])] for text in texts[4:8]] + [[]] * 9
    ends = [
        int(np.argmax(np.isin(text, eos))) + 1 if eos else NEW
        for text, eos in zip(texts, eos_ids, strict=True)
    ]
    budgets = np.array([*[NEW] * 7, ends[7], *[NEW] * 4, *rng.integers(1, NEW, 5)])
    out = specjax.generate(
        TableLM(table),
        tokens,
        lengths,
        draft=Oracle.of(texts, lengths, np.arange(GREEDY_BATCH) % (GAMMA + 1)),
        config=config(max_new_tokens=NEW, gamma=GAMMA, prefill_chunk=2),
        sampling=specjax.Sampling(temperature=np.arange(GREEDY_BATCH) // (GREEDY_BATCH - 1), **penalties),
        stop=specjax.Stop(eos_ids=eos_ids, max_new_tokens=budgets),
    )
    for row in range(GREEDY_BATCH - 1):
        length = min(ends[row], budgets[row])
        expected = np.where(np.arange(NEW) < length, texts[row], 0)
        np.testing.assert_array_equal(out.tokens[row], expected, err_msg=f"text of row {row}")
        assert out.lengths[row] == length, f"row {row}"
        reason = FinishReason.EOS if eos_ids[row] else FinishReason.LENGTH
        assert out.finish_reasons[row] == reason, f"row {row}"


@jax.jit
def position_noise(seed, positions):
    """float[..., V]: what the coupled rule draws the token at each position with."""

    def at(position):
        noise = Noise.of_round(seed, jnp.int32(0), position, shared=True)
        return noise.position_gumbel(0, VOCAB, jnp.float32)

    return jax.vmap(at)(positions)


def check_coupled(seed):
    """Under the coupled rule sampled rows say what a plain loop draws with the noise of each position."""
    rng = np.random.default_rng(seed)
    tokens, lengths = prompts(rng, 8)
    target = TableLM.random(VOCAB, seed)
    settings = {"temperature": TEMPERATURE, "top_p": 0.7}
    noise = [np.asarray(position_noise(jnp.uint32(seed + row), np.arange(WIDTH + NEW))) for row in range(8)]

    def drawn(row, prompt, output, logits):
        log_law = reference.log_law(np.float64(logits), settings)
        return int(np.argmax(log_law + noise[row][len(prompt) + len(output)]))

    texts = decode_one_by_one(np.asarray(target.table[...]), tokens, lengths, drawn)
    out = specjax.generate(
        target,
        tokens,
        lengths,
        draft=FromLogits.of(rng.normal(size=VOCAB)),
        config=config(max_new_tokens=NEW, gamma=GAMMA, rule="coupled"),
        sampling=specjax.Sampling(seed=seed, **settings),
    )
    np.testing.assert_array_equal(out.tokens, texts)


def check_neighbours(seed):
    """Rows say the same at another place of the batch, beside another row that ends at once."""
    rng = np.random.default_rng(seed)
    batch = 4
    tokens, lengths = prompts(rng, batch)
    seeds, budgets = rng.integers(2**32, size=batch, dtype=np.uint32), np.full(batch, NEW)
    # Near enough to the draft that rows get out of step.
    logits = rng.normal(size=VOCAB)
    target = TableLM((logits + 0.7 * rng.normal(size=(VOCAB,) * 3)).astype(np.float32))

    def run(order):
        out = specjax.generate(
            target,
            tokens[order],
            lengths[order],
            draft=FromLogits.of(logits),
            config=config(max_new_tokens=NEW, gamma=GAMMA, policy=Adaptive(memory=0.5)),
            sampling=specjax.Sampling(temperature=1.0, seed=seeds[order]),
            stop=specjax.Stop(max_new_tokens=budgets[order]),
        )
        return np.asarray(out.tokens)[np.argsort(order)]

    together = run(np.arange(batch))
    tokens[-1], seeds[-1], budgets[-1] = (tokens[-1] + 1) % VOCAB, seeds[-1] + 1, 1
    elsewhere = run(np.roll(np.arange(batch), 1))
    np.testing.assert_array_equal(elsewhere[:-1], together[:-1])


def check_self_draft(seed):
    """A draft that is the target is always accepted, however long the text: nothing in its cache is lost."""
    rng = np.random.default_rng(seed)
    tokens, lengths = prompts(rng, 4)
    target = TableLM.random(VOCAB, seed)
    rounds = 15
    out = specjax.generate(
        target,
        tokens,
        lengths,
        draft=Model(target),
        config=config(max_new_tokens=rounds * (GAMMA + 1), gamma=GAMMA, rule="coupled"),
        sampling=specjax.Sampling(temperature=np.array([0.0, 0.5, 1.0, 2.0]), seed=seed),
    )
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, rounds)


def check_cached_text(seed):
    """After every round both caches predict what a fresh prefill of the text predicts."""
    rng = np.random.default_rng(seed)
    tokens, lengths = prompts(rng, 4)
    target = TableLM.random(VOCAB, seed)
    near = np.asarray(target.table[...]) + rng.normal(size=(VOCAB,) * 3)
    draft = Model(TableLM(near.astype(np.float32)))
    decoder = specjax.Decoder(target, draft, config(max_new_tokens=NEW, gamma=GAMMA))
    state = decoder.start(tokens, lengths, sampling=specjax.Sampling(temperature=np.arange(4) % 2, seed=seed))
    check_caches(target, state, draft=draft)
    while np.any(state.running):
        state = decoder.run_rounds(state, 1)
        check_caches(target, state, draft=draft)


CHECKS = {
    "token rule": functools.partial(check_rule, "token"),
    "block rule": functools.partial(check_rule, "block"),
    "law": check_law,
    "mixed drafts": check_mixed_drafts,
    "greedy": check_greedy,
    "coupled": check_coupled,
    "neighbours": check_neighbours,
    "self draft": check_self_draft,
    "caches": check_cached_text,
}
