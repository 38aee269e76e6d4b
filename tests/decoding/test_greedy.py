"""Greedy text does not depend on the draft, on gamma, on neighbours or on where a row sits."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax.decoding.invariants import Violation
from specjax.drafts import Model, Ngram, NoDraft
from specjax.models.transformer import Transformer
from specjax.testing import Oracle, perturbed
from tests.tiny_llama import CONFIG


def transformer(seed, **changes):
    return Transformer(dataclasses.replace(CONFIG, **changes), rngs=nnx.Rngs(seed))


NEW = 48
BATCH, WIDTH = 8, 12

TARGET = transformer(0)
DRAFTS = {
    "ngram": Ngram(),
    "self": Model(TARGET),
    "perturbed": Model(perturbed(TARGET, 0.3)),
    "other": Model(transformer(5, num_layers=1)),
}


def prompts(seed=0, batch=BATCH):
    rng = np.random.default_rng(seed)
    # Few distinct tokens, so that n-grams match.
    return rng.integers(0, 6, (batch, WIDTH)).astype(np.int32), rng.integers(1, WIDTH + 1, batch).astype(
        np.int32
    )


def run(draft, gamma, batch_of=None, **kwargs):
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=gamma, debug=True)
    tokens, lengths = batch_of or prompts()
    return specjax.generate(TARGET, tokens, lengths, draft=draft, config=config, **kwargs)


QUICK = (("ngram", 4), ("perturbed", 4), ("self", 4))


@pytest.mark.parametrize(
    "name, gamma",
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(DRAFTS, (1, 2, 4, 8))
    ],
)
def test_speculative_text_equals_plain_text(name, gamma):
    plain = run(NoDraft(width=gamma), gamma)
    out = run(DRAFTS[name], gamma)
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    np.testing.assert_array_equal(out.finish_reasons, plain.finish_reasons)
    if name == "self":
        np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    if name in ("ngram", "perturbed"):
        accepted, drafted = np.sum(out.stats.accepted), np.sum(out.stats.drafted)
        assert 0 < accepted < drafted


@pytest.mark.smoke
def test_float32_text_does_not_depend_on_the_compiled_width():
    np.testing.assert_array_equal(run(NoDraft(), 0).tokens, run(NoDraft(width=4), 4).tokens)


def test_bfloat16_text_is_that_of_plain_decoding_at_equal_shapes():
    """Ties are near in bfloat16, so each round must round as plain decoding does."""
    one_layer = dataclasses.replace(CONFIG, num_layers=1)
    target = Transformer(one_layer, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4)

    def text(draft):
        return specjax.generate(target, *prompts(), draft=draft, config=config)

    plain, out = text(NoDraft(width=4)), text(Ngram())
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert 0 < np.sum(out.stats.accepted) < np.sum(out.stats.drafted)


@pytest.mark.smoke
def test_every_pattern_of_acceptance_gives_the_same_text():
    """The draft replays the answer with an error planted at a slot of its own in each row."""
    plain = run(NoDraft(width=4), 4)
    lengths = prompts()[1]
    for shift in range(5):
        wrong_at = (np.arange(BATCH) + shift) % 5
        out = run(Oracle.of(plain.tokens, lengths, wrong_at), 4)
        np.testing.assert_array_equal(out.tokens, plain.tokens)
        # Slots before the wrong one are accepted, none from there on.
        accepted = np.asarray(out.stats.accepted_at) > 0
        np.testing.assert_array_equal(accepted, np.arange(4) < wrong_at[:, None])


@pytest.mark.parametrize(
    "draft",
    (
        pytest.param(Model(perturbed(TARGET, 0.3)), id="model"),
        pytest.param(Ngram(), id="ngram", marks=pytest.mark.slow),
    ),
)
def test_a_row_alone_in_a_batch_and_at_another_place_gives_the_same_tokens(draft):
    settings = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1}
    seeds = np.arange(100, 100 + BATCH)
    tokens, lengths = prompts()

    def rows(which):
        return run(
            draft,
            4,
            (tokens[which], lengths[which]),
            sampling=specjax.Sampling(**settings, seed=seeds[which]),
        ).tokens

    together = np.asarray(rows(np.arange(BATCH)))
    order = np.random.default_rng(0).permutation(BATCH)
    np.testing.assert_array_equal(together[order], rows(order))
    for row in (0, 5):
        np.testing.assert_array_equal(together[[row]], rows([row]))


def test_equal_prompts_differ_by_seed_and_agree_with_equal_seeds():
    tokens, lengths = np.tile(prompts()[0][:1], (BATCH, 1)), np.full(BATCH, WIDTH, np.int32)
    differ = run(Ngram(), 4, (tokens, lengths), sampling=specjax.Sampling(temperature=1.0, seed=7))
    agree = run(
        Ngram(),
        4,
        (tokens, lengths),
        sampling=specjax.Sampling(temperature=1.0, seed=[7, 7, 9, 9, 1, 2, 3, 4]),
    )
    assert len({tuple(row) for row in np.asarray(differ.tokens)}) == BATCH
    np.testing.assert_array_equal(agree.tokens[0], agree.tokens[1])
    np.testing.assert_array_equal(agree.tokens[2], agree.tokens[3])
    np.testing.assert_array_equal(agree.tokens[0], differ.tokens[0])


def test_greedy_and_sampled_rows_share_a_batch():
    mixed = run(Ngram(), 4, sampling=specjax.Sampling(temperature=np.arange(BATCH) % 2, seed=3))
    greedy = run(Ngram(), 4)
    sampled = run(Ngram(), 4, sampling=specjax.Sampling(temperature=1.0, seed=3))
    np.testing.assert_array_equal(mixed.tokens[::2], greedy.tokens[::2])
    np.testing.assert_array_equal(mixed.tokens[1::2], sampled.tokens[1::2])


def test_acceptance_of_a_self_draft_does_not_drift():
    """A hole in the draft's cache, or a rollback by one too many, costs acceptance and never changes text."""
    config = specjax.DecodeConfig(max_new_tokens=400, gamma=3)
    tokens, lengths = prompts(batch=2)
    out = specjax.generate(TARGET, tokens, lengths, draft=Model(TARGET), config=config)
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, [100, 100])


def test_acceptance_falls_as_a_draft_gets_worse():
    """And at no slot much faster than at the one before, as it would with a wrong position or mask there."""
    rates = []
    for scale in (0.0, 0.1, 0.3, 1.0):
        counted = run(Model(perturbed(TARGET, scale)), 4).stats
        drafted, accepted = (np.sum(at, axis=0) for at in (counted.drafted_at, counted.accepted_at))
        rates.append(float(np.sum(accepted) / np.sum(drafted)))
        if scale == 0.1:
            # Of the drafts whose earlier tokens were all accepted; some of them were shortened by the budget.
            conditional = accepted[1:] / accepted[:-1]
            np.testing.assert_array_less(0.6 * accepted[0] / drafted[0], conditional)
    assert rates[0] == 1
    assert rates == sorted(set(rates), reverse=True)


@pytest.mark.parametrize("smaller", (True, pytest.param(False, marks=pytest.mark.slow)))
def test_padded_vocabularies_may_differ(smaller):
    """Ids that the draft lacks are still reachable; ids that the target lacks are never drafted."""
    draft = transformer(3, vocab_size=40 if smaller else 90)
    out = run(Model(draft), 4, sampling=specjax.Sampling(temperature=1.0, seed=1))
    assert np.max(out.tokens) >= 40
    assert np.max(out.tokens) < 64
    np.testing.assert_array_equal(run(Model(draft), 4).tokens, run(NoDraft(width=4), 4).tokens)


def test_a_draft_at_the_end_of_its_context_stops_proposing():
    """A row whose prompt is already longer than that never had a proposal."""
    limited = transformer(0, context_length=8)
    out = run(Model(limited), 4)
    np.testing.assert_array_equal(out.tokens, run(NoDraft(width=4), 4).tokens)
    _, lengths = prompts()
    # It can guess up to the token at position 8; every row asks for text well beyond that.
    room = np.maximum(8 + 1 - lengths, 0)
    drafted = np.asarray(out.stats.drafted)
    np.testing.assert_array_equal(drafted > 0, room > 0)
    np.testing.assert_array_less(drafted, room + 4)
    assert set(drafted > 0) == {True, False}
    assert np.all(np.asarray(out.stats.draft_failures) == 0)


def test_target_logits_that_are_not_finite_end_that_row_alone_and_keep_its_text():
    row = 3
    plain = np.asarray(run(NoDraft(width=4), 4).tokens)
    lengths = prompts()[1]

    def at_position(place, other):
        return plain[other, lengths[row] + place - lengths[other]]

    rest = [other for other in range(BATCH) if other != row]
    place = next(p for p in range(6, 30) if plain[row, p] not in [at_position(p, other) for other in rest])
    poison, position = int(plain[row, place]), int(lengths[row]) + place

    class Failing(Transformer):
        """Answers NaN after a certain token at a certain position."""

        def __call__(self, tokens, positions, cache, *, taps=()):
            hidden, tapped, pending = super().__call__(tokens, positions, cache, taps=taps)
            fails = (tokens == poison) & (positions == position)
            return jnp.where(fails[..., None], jnp.nan, hidden), tapped, pending

    failing = Failing(CONFIG, rngs=nnx.Rngs(0))
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4, debug=True)
    for draft in (NoDraft(width=4), Oracle.of(plain, lengths, np.full(BATCH, 4))):
        out = specjax.generate(failing, *prompts(), draft=draft, config=config)
        assert out.finish_reasons[row] == specjax.FinishReason.ERROR
        kept = int(out.lengths[row])
        assert kept == place + 1  # what plain decoding keeps, whatever the block it is in
        np.testing.assert_array_equal(out.tokens[row, :kept], plain[row, :kept])
        np.testing.assert_array_equal(out.tokens[row, kept:], 0)
        np.testing.assert_array_equal(np.asarray(out.tokens)[rest], plain[rest])


def test_debug_names_the_row_and_the_invariant():
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=4, debug=True)
    decoder = specjax.Decoder(TARGET, Model(TARGET), config)

    def broken(**changes):
        state = decoder.run_rounds(decoder.start(*prompts()), 2)
        return decoder.run_rounds(dataclasses.replace(state, **{k: f(state) for k, f in changes.items()}), 1)

    row_2 = np.arange(BATCH) == 2
    with pytest.raises(specjax.InvariantError, match="row 2: CACHE_LENGTH"):
        broken(cached_length=lambda state: state.cached_length - row_2)
    with pytest.raises(specjax.InvariantError, match="row 2: POSITIONS"):
        broken(cached_length=lambda state: state.cached_length + row_2)
    with pytest.raises(specjax.InvariantError, match="row 2: TEXT_AFTER_END"):
        broken(tokens=lambda state: state.tokens.at[2, -1].set(9))
    with pytest.raises(specjax.InvariantError, match="row 2: DRAFT_AHEAD"):
        broken(draft=lambda state: dataclasses.replace(state.draft, length=state.draft.length + 9 * row_2))


def test_violations_are_told_without_debug_too():
    @dataclasses.dataclass(frozen=True)
    class Overdrawn(Ngram):
        """Claims more live tokens than a round has slots."""

        def propose(self, module, carry, context):
            proposal, carry = super().propose(module, carry, context)
            return dataclasses.replace(proposal, live=jnp.full_like(proposal.live, 9)), carry

    config = specjax.DecodeConfig(max_new_tokens=4, gamma=4)
    out = specjax.generate(TARGET, *prompts(), draft=Overdrawn(), config=config)
    assert np.all(np.asarray(out.violations) & Violation.LIVE_RANGE)
