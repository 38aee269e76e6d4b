"""What the recycling draft learns and proposes, against a dictionary for each row."""

import itertools
import types

import jax.numpy as jnp
import numpy as np

import specjax
from specjax.drafts import NoDraft, Outcome, Recycling
from specjax.testing import TableLM

VOCAB, GAMMA, BATCH, NEW = 9, 4, 3, 30
RNG = np.random.default_rng(0)


def propose(table, texts, max_live=GAMMA):
    tokens = np.zeros((len(texts), max(map(len, texts)) + 2), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    context = types.SimpleNamespace(
        tokens=jnp.asarray(tokens),
        length=jnp.array([len(text) for text in texts], jnp.int32),
        max_live=jnp.full(len(texts), max_live, jnp.int32),
        gamma=GAMMA,
    )
    proposal, _ = Recycling().propose(None, table, context)
    return [row[:live].tolist() for row, live in zip(np.asarray(proposal.tokens), proposal.live, strict=True)]


def expected(successors, text):
    """Along a row's dictionary, until it knows no further."""
    tokens, token = [], text[-1]
    while len(tokens) < GAMMA and token in successors:
        token = successors[token]
        tokens.append(token)
    return tokens


def test_pairs_of_a_prompt_the_last_of_equals():
    texts = [RNG.integers(0, 6, length).tolist() for length in (20, 13, 2, 1)]
    prompts = np.full((len(texts), 24), VOCAB - 1, np.int32)  # what lies beyond a text is not learned
    for row, text in zip(prompts, texts, strict=True):
        row[: len(text)] = text
    lengths = jnp.array([len(text) for text in texts], jnp.int32)
    table = Recycling().init(None, len(texts), 24, VOCAB)
    table = Recycling().prefill(None, table, jnp.asarray(prompts), lengths, 8)
    successors = [dict(itertools.pairwise(text)) for text in texts]
    assert propose(table, texts) == [expected(*pair) for pair in zip(successors, texts, strict=True)]
    assert propose(table, texts, max_live=1) == [
        expected(*pair)[:1] for pair in zip(successors, texts, strict=True)
    ]


def test_what_the_target_likes_at_every_scored_position():
    """Of rejected draft tokens too, but not of slots that were not live, nor in rows that did not run."""
    table = Recycling().init(None, BATCH, 0, VOCAB)
    successors = [{} for _ in range(BATCH)]
    for _ in range(20):
        scored = RNG.integers(0, VOCAB, (BATCH, GAMMA + 1))
        logits = RNG.normal(size=(BATCH, GAMMA + 1, VOCAB))
        live, count = RNG.integers(0, GAMMA + 1, BATCH), RNG.integers(0, 2, BATCH)
        arrays = {"scored": scored, "live": live, "accepted": 0 * live, "emitted": scored, "count": count}
        ints = {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}
        outcome = Outcome(**ints, length=ints["count"], features=(), logits=jnp.asarray(logits))
        table = Recycling().commit(None, table, None, outcome)
        for row in np.flatnonzero(count):
            for slot in range(live[row] + 1):
                successors[row][int(scored[row, slot])] = int(np.argmax(logits[row, slot]))
    texts = [[token] for token in range(VOCAB)]
    for row in range(BATCH):
        of_row = jnp.broadcast_to(table[row], (VOCAB, VOCAB))
        assert propose(of_row, texts) == [expected(successors[row], text) for text in texts]


def test_greedy_text_is_the_targets_and_what_recurs_is_accepted():
    """A target that looks at the last token alone goes round in a circle, which is learned in one turn."""
    target = TableLM(np.broadcast_to(RNG.normal(size=(VOCAB, VOCAB)), (VOCAB,) * 3).astype(np.float32))
    config = specjax.DecodeConfig(max_new_tokens=NEW, gamma=GAMMA, debug=True)
    prompts = np.array([[0], [3], [5]], np.int32)
    plain, out = (
        specjax.generate(target, prompts, [1, 1, 1], draft=draft, config=config)
        for draft in (NoDraft(width=GAMMA), Recycling())
    )
    np.testing.assert_array_equal(out.tokens, plain.tokens)
    assert np.all(np.asarray(out.stats.accepted) > NEW // 2)
