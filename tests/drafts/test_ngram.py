"""What the n-gram draft proposes, against a search written as a loop."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafts import Ngram

GAMMA = 5


def propose(texts, draft=None, widths=(GAMMA + 1,), max_live=GAMMA):
    """Proposed tokens of each text, dead slots left out."""
    width = max(map(len, texts)) + 3
    tokens = np.full((len(texts), width), 9)  # what lies beyond a text must not be found
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    context = types.SimpleNamespace(
        tokens=jnp.asarray(tokens, jnp.int32),
        length=jnp.array([len(text) for text in texts], jnp.int32),
        max_live=jnp.full(len(texts), max_live, jnp.int32),
        gamma=GAMMA,
        widths=widths,
    )
    proposal, _ = (draft or Ngram()).propose(None, None, context)
    return [row[:live].tolist() for row, live in zip(np.asarray(proposal.tokens), proposal.live, strict=True)]


def expected(text, max_match=32):
    """The continuation of the longest, most recent match of the end of a text, and the match's length."""
    best, best_end = 0, None
    for end in range(len(text) - 1):
        matched = 0
        while matched < min(end + 1, max_match) and text[end - matched] == text[-1 - matched]:
            matched += 1
        if matched and matched >= best:
            best, best_end = matched, end
    if best_end is None:
        return [], 0
    period = len(text) - 1 - best_end
    return [text[best_end + 1 + slot % period] for slot in range(GAMMA)], best


@pytest.mark.parametrize(
    "text, proposed",
    (
        ([1, 2, 3, 4, 5, 6, 7, 1, 2], [3, 4, 5, 6, 7]),
        ([1, 2, 3, 8, 1, 2, 4, 8, 1, 2], [4, 8, 1, 2, 4]),  # the most recent of equally long matches
        ([1, 2, 3, 8, 2, 4, 8, 1, 2], [3, 8, 2, 4, 8]),  # the longest
        ([7, 7], [7, 7, 7, 7, 7]),
        ([1, 2, 1], [2, 1, 2, 1, 2]),  # a repetition goes on
        ([1, 2, 3], []),
        ([4], []),
    ),
)
def test_what_followed_the_longest_match(text, proposed):
    assert propose([text]) == [proposed]


def test_random_texts_of_a_ragged_batch():
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 4, rng.integers(1, 40)).tolist() for _ in range(200)]
    assert propose(texts) == [expected(text)[0] for text in texts]
    assert propose(texts, Ngram(max_match=2)) == [expected(text, max_match=2)[0] for text in texts]


def test_short_matches_can_be_refused():
    texts = [[1, 2, 3, 1, 2], [1, 2, 3, 2]]
    assert propose(texts, Ngram(min_match=2)) == [[3, 1, 2, 3, 1], []]


def test_no_more_than_is_of_use():
    assert propose([[1, 2, 3, 4, 1]], max_live=2) == [[2, 3]]


@pytest.mark.parametrize("widths", ((2, 3, 5, 6), (1, 6), (4, 6), (3, 5, 6)))
def test_a_longer_match_proposes_more_where_short_proposals_are_cheap(widths):
    """1, 2, 4, ... tokens for matches of 1, 2, 3, ..., and whatever costs no more to score."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 3, rng.integers(1, 60)).tolist() for _ in range(200)]
    matches = [expected(text) for text in texts]
    assert {1, 2, 3, 4} <= {matched for _, matched in matches}

    def live(matched):
        return min((width - 1 for width in widths if width > 2 ** (matched - 1)), default=GAMMA)

    assert propose(texts, widths=widths) == [
        tokens[: live(matched)] if matched else [] for tokens, matched in matches
    ]
