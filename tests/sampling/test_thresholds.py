"""The sets that top-k, top-p and min-p keep, against sorts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling.thresholds import min_p_threshold, top_k_threshold, top_p_threshold

ROWS, VOCAB = 6000, 19
BORDER = 1e-5  # closer than this to its border, rounding may decide about a token
top_k, top_p, min_p = (jax.jit(f) for f in (top_k_threshold, top_p_threshold, min_p_threshold))


def many_logits():
    """Rows of several kinds: spread, tied, zeros of both signs, excluded tokens, peaked, huge and tiny."""
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(ROWS, VOCAB)) * 3
    ties = rng.integers(-2, 3, (ROWS, VOCAB)) / 2.0
    excluded = np.where(rng.random((ROWS, VOCAB)) < 0.4, -np.inf, spread)
    excluded[:, 0] = spread[:, 0]
    peaked = np.where(rng.random((ROWS, VOCAB)) < 0.1, 60.0, spread)
    scales = np.exp(rng.normal(size=(ROWS, VOCAB)) * 20) * np.sign(spread)
    kinds = np.stack([spread, ties, excluded, peaked, np.clip(scales, -1e30, 1e30)])
    logits = kinds[rng.integers(0, len(kinds), ROWS), np.arange(ROWS)].astype(np.float32)
    negative_zero = (logits == 0) & (rng.random(logits.shape) < 0.5)
    return np.where(negative_zero, np.float32(-0.0), logits), rng


def kept(logits, threshold):
    return logits >= np.asarray(threshold)[:, None]


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_top_k_keeps_the_k_largest_and_what_ties_with_the_last():
    logits, rng = many_logits()
    k = rng.integers(1, VOCAB + 6, ROWS).astype(np.int32)
    kth = -np.sort(-logits, axis=1)[np.arange(ROWS), np.minimum(k, VOCAB) - 1]
    np.testing.assert_array_equal(kept(logits, top_k(logits, k)), kept(logits, kth))
    # What is compared must have ties at the border, and k beyond the vocabulary.
    assert np.any(kept(logits, kth).sum(axis=1) > k)
    assert np.any(k > VOCAB)


def test_top_p_keeps_a_token_when_likelier_ones_hold_less_than_p():
    logits, rng = many_logits()
    p = rng.choice([1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6], ROWS) * rng.uniform(0.9, 1.0, ROWS)
    p = p.astype(np.float32)
    probabilities = softmax(logits)
    likelier = (logits[:, None, :] > logits[:, :, None]) * probabilities[:, None, :]
    held = likelier.sum(axis=2)
    clear = np.all(np.abs(held - p[:, None]) > BORDER, axis=1) | (p < 1e-4)
    assert clear.mean() > 0.9
    expected = held < p[:, None]
    np.testing.assert_array_equal(kept(logits, top_p(logits, p))[clear], expected[clear])
    # Tied tokens stand or fall together.
    assert np.any(
        np.sum(expected & (held == np.max(np.where(expected, held, 0), axis=1, keepdims=True)), axis=1) > 1
    )


def test_min_p_keeps_what_is_a_fraction_as_likely_as_the_likeliest():
    logits, rng = many_logits()
    p = rng.choice([0.0, 1e-6, 0.01, 0.2, 0.9, 1.0], ROWS).astype(np.float32)
    margin = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(margin - np.log(p.astype(np.float64))[:, None])
    clear = np.all((distance > BORDER) | (margin == 0), axis=1) | (p == 0)
    assert clear.mean() > 0.9
    with np.errstate(divide="ignore"):
        expected = margin >= np.log(p.astype(np.float64))[:, None]
    np.testing.assert_array_equal(kept(logits, min_p(logits, p))[clear], expected[clear])


@pytest.mark.parametrize(
    ("k", "expected"),
    (
        (1, [False, True, False, False, False]),
        (2, [False, True, True, True, False]),
        (3, [False, True, True, True, False]),
        (4, [True, True, True, True, False]),
        (5, [True, True, True, True, True]),
        (2**31 - 1, [True, True, True, True, True]),
    ),
)
def test_zeros_of_both_signs_tie(k, expected):
    logits = np.array([[-1.0, 1.0, 0.0, -0.0, -np.inf]], np.float32)
    np.testing.assert_array_equal(kept(logits, top_k(logits, np.array([k], np.int32)))[0], expected)


@pytest.mark.parametrize("p", (1e-30, 0.25, 0.5, 0.999))
def test_the_nucleus_of_equally_likely_tokens_is_all_of_them(p):
    logits = np.array([[2.0, -np.inf, 2.0, 2.0, 2.0]], np.float32)
    expected = [[True, False, True, True, True]]
    np.testing.assert_array_equal(kept(logits, top_p(logits, np.array([p], np.float32))), expected)


def test_the_likeliest_token_always_stays():
    logits = np.array([[5.0, 1.0, 0.0, -3.0, -np.inf]] * 2, np.float32)
    tiny = np.array([1e-38, 1e-45], np.float32)
    np.testing.assert_array_equal(kept(logits, top_p(logits, tiny)), [[True] + [False] * 4] * 2)
    np.testing.assert_array_equal(kept(logits, min_p(logits, np.ones(2, np.float32)))[:, 0], True)
    np.testing.assert_array_equal(
        kept(logits, top_k(logits, np.ones(2, np.int32))), [[True] + [False] * 4] * 2
    )


def test_a_nucleus_of_everything_drops_nothing_that_can_be_drawn():
    logits = np.array([[0.0, -1.0, -5.0, -9.0, -12.0]], np.float32)
    for p in (1.0, np.nextafter(np.float32(1), np.float32(0))):
        assert kept(logits, top_p(logits, np.array([p], np.float32))).all()


def test_a_threshold_is_one_of_the_logits():
    logits, rng = many_logits()
    k = rng.integers(1, VOCAB, ROWS).astype(np.int32)
    p = rng.uniform(0.01, 0.99, ROWS).astype(np.float32)
    for threshold in (top_k(logits, k), top_p(logits, p)):
        assert np.all(np.any(logits == np.asarray(threshold)[:, None], axis=1))


def test_positions_of_a_block_have_thresholds_of_their_own():
    logits = jnp.array([[[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]], [[9.0, 7.0, 8.0], [0.0, 0.0, 1.0]]])
    np.testing.assert_array_equal(
        top_k_threshold(logits, jnp.array([[1, 2], [3, 2]])), [[3.0, 5.0], [7.0, 0.0]]
    )
