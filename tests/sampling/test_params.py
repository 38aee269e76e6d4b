"""Settings of one value or one for each row, as arrays with a value for each row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import Sampling, row_seeds, to_rows
from specjax.sampling.params import select_rows

VOCAB = 5


def rows_of(batch=3, max_bias=3, max_bias_len=1, **settings):
    return to_rows(
        Sampling(**settings),
        batch,
        eos_ids=jnp.full((batch, 1), -1, jnp.int32),
        max_new_tokens=jnp.full(batch, 9, jnp.int32),
        max_bias=max_bias,
        max_bias_len=max_bias_len,
    )


def test_one_value_is_for_all_rows_and_an_array_for_each():
    rows = rows_of(temperature=0.5, top_k=[1, 2, 3], top_p=np.array([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(rows.temperature, np.full(3, 0.5, np.float32))
    np.testing.assert_array_equal(rows.top_k, [1, 2, 3])
    np.testing.assert_array_equal(rows.top_p, np.array([0.1, 0.2, 0.3], np.float32))
    assert (rows.top_k.dtype, rows.top_p.dtype) == (jnp.int32, jnp.float32)


def test_defaults_are_greedy_and_change_nothing():
    rows = rows_of()
    assert np.all(rows.greedy)
    assert not np.any(rows.invalid(VOCAB))
    np.testing.assert_array_equal(rows.bias_ids, -1)


def test_biases_and_bans_share_the_slots():
    rows = rows_of(logit_bias={4: 1.5}, banned_tokens=[0, 2])
    np.testing.assert_array_equal(rows.bias_ids[..., 0], [[4, 0, 2]] * 3)
    np.testing.assert_array_equal(rows.bias_values, [[1.5, -np.inf, -np.inf]] * 3)


def test_rows_may_have_biases_and_bans_of_their_own():
    rows = rows_of(logit_bias=[{}, {1: 2.0}, {}], banned_tokens=[[], [0], [3, 4]])
    np.testing.assert_array_equal(rows.bias_ids[..., 0], [[-1, -1, -1], [1, 0, -1], [3, 4, -1]])
    np.testing.assert_array_equal(rows.bias_values, [[0, 0, 0], [2, -np.inf, 0], [-np.inf, -np.inf, 0]])


def test_a_bias_for_all_goes_with_bans_for_each():
    rows = rows_of(logit_bias={1: 2.0}, banned_tokens=[[], [0], [3]])
    np.testing.assert_array_equal(rows.bias_ids[..., 0], [[1, -1, -1], [1, 0, -1], [1, 3, -1]])


def test_sequences_are_right_aligned_and_share_the_slots():
    rows = rows_of(
        max_bias_len=3,
        logit_bias={4: 1.5},
        sequence_bias=[{(1, 2): 2.0}, {}, {(3, 0, 1): -1.0}],
        banned_sequences=[[], [[4], [0, 0]], []],
    )
    np.testing.assert_array_equal(
        rows.bias_ids,
        [
            [[-1, -1, 4], [-1, 1, 2], [-1, -1, -1]],
            [[-1, -1, 4], [-1, -1, 4], [-1, 0, 0]],
            [[-1, -1, 4], [3, 0, 1], [-1, -1, -1]],
        ],
    )
    np.testing.assert_array_equal(rows.bias_values, [[1.5, 2, 0], [1.5, -np.inf, -np.inf], [1.5, -1, 0]])


def test_one_list_of_banned_sequences_is_for_all_rows():
    rows = rows_of(max_bias_len=2, banned_sequences=[[1, 2], [3]])
    np.testing.assert_array_equal(rows.bias_ids, [[[1, 2], [-1, 3], [-1, -1]]] * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"temperature": [1.0, 2.0]}, r"temperature has shape \(2,\).*3 rows"),
        ({"top_k": np.zeros((3, 1), int)}, r"top_k has shape \(3, 1\)"),
        ({"logit_bias": [{}, {}]}, "logit_bias has 2 rows.*3 rows"),
        ({"banned_tokens": [[], []]}, "banned_tokens has 2 rows.*3 rows"),
        ({"banned_tokens": [0, 1, 2, 3]}, r"holds 4.*at most 3 \(DecodeConfig.max_bias\)"),
        ({"logit_bias": {0: 1.0, 1: 1.0}, "banned_tokens": [2, 3]}, "holds 4.*at most 3"),
        ({"banned_sequences": [[1, 2]]}, r"one of 2 tokens; expected 1 to 1 \(DecodeConfig.max_bias_len\)"),
        ({"banned_sequences": [[[1]], [[2]]]}, "banned_sequences has 2 rows.*3 rows"),
        ({"banned_sequences": [[1], []]}, "one of 0 tokens"),
        ({"sequence_bias": {(-1,): 1.0}}, "is -1 in row 0; expected ids from 0"),
        ({"suppressed_first_tokens": [0, 1, 2, 3]}, r"4 ids.*at most 3 \(DecodeConfig.max_bias\)"),
    ),
)
def test_shapes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        rows_of(**settings)


@pytest.mark.parametrize("name", ("top_k", "min_new_tokens", "no_repeat_ngram_size", "seed"))
def test_fractions_are_refused_where_whole_numbers_are_meant(name):
    with pytest.raises(TypeError, match=f"{name} has dtype float.*expected integers"):
        row_seeds(2.5, 3) if name == "seed" else rows_of(**{name: 2.5})


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("name", "bad", "borders"),
    (
        ("temperature", (-0.1, NAN, INF), (0.0, 1e-6, 1e6)),
        ("top_k", (-1,), (0, 1, 100)),
        ("top_p", (0.0, -0.5, 1.01, NAN), (1e-6, 1.0)),
        ("min_p", (-0.1, 1.01, NAN), (0.0, 1.0)),
        ("repetition_penalty", (0.0, -1.0, INF, NAN), (0.01, 100.0)),
        ("presence_penalty", (INF, -INF, NAN), (-2.0, 2.0)),
        ("frequency_penalty", (INF, -INF, NAN), (-2.0, 2.0)),
        ("min_new_tokens", (-1,), (0, 1000)),
        ("no_repeat_ngram_size", (-1,), (0, 1000)),
        ("forced_first_token", (-2, VOCAB), (-1, 0, VOCAB - 1)),
        ("forced_last_token", (-2, VOCAB), (-1, 0, VOCAB - 1)),
        ("suppressed_first_tokens", ([-2], [VOCAB]), ([], [0], [VOCAB - 1])),
    ),
)
def test_a_bad_value_makes_its_own_row_invalid(name, bad, borders):
    good = borders[0]
    for value in bad:
        np.testing.assert_array_equal(
            rows_of(**{name: [good, value, good]}).invalid(VOCAB), [False, True, False]
        )
    for value in borders:
        assert not np.any(rows_of(**{name: [value] * 3}).invalid(VOCAB))


@pytest.mark.parametrize("bias", ({5: 1.0}, {0: INF}, {0: NAN}))
def test_a_bad_bias_makes_its_own_row_invalid(bias):
    rows = rows_of(logit_bias=[{0: -INF}, bias, {4: 1.0}])
    np.testing.assert_array_equal(rows.invalid(VOCAB), [False, True, False])


def test_one_seed_means_seed_plus_row():
    np.testing.assert_array_equal(row_seeds(7, 3), [7, 8, 9])
    np.testing.assert_array_equal(row_seeds(np.int64(7), 3), [7, 8, 9])


@pytest.mark.parametrize("seed", (2**32 - 2, -2, np.int64(2**32 - 2), np.uint32(2**32 - 2)))
def test_seeds_wrap_at_32_bits(seed):
    np.testing.assert_array_equal(row_seeds(seed, 3), [2**32 - 2, 2**32 - 1, 0])


def test_an_array_of_seeds_is_taken_as_it_is():
    np.testing.assert_array_equal(row_seeds([5, 5, 2**32 - 1], 3), [5, 5, 2**32 - 1])
    np.testing.assert_array_equal(row_seeds(np.array([5, 5, 2**32 - 1]), 3), [5, 5, 2**32 - 1])
    with pytest.raises(ValueError, match=r"seed has shape \(2,\)"):
        row_seeds([1, 2], 3)


def test_traced_settings_give_the_same_rows():
    sampling = Sampling(
        temperature=0.5,
        top_k=[1, 2, 3],
        logit_bias={4: 1.5},
        sequence_bias={(0, 1): 1.0},
        banned_tokens=[[0], [], [1]],
        banned_sequences=[[1, 2]],
        suppressed_first_tokens=[[3], [], [1, 2]],
        seed=3,
    )
    eos_ids = jnp.full((3, 1), 2, jnp.int32)

    def arrays(sampling):
        rows = to_rows(
            sampling, 3, eos_ids=eos_ids, max_new_tokens=jnp.full(3, 9), max_bias=4, max_bias_len=2
        )
        return rows, row_seeds(sampling.seed, 3)

    jax.tree.map(np.testing.assert_array_equal, jax.jit(arrays)(sampling), arrays(sampling))


def test_every_setting_reaches_the_rows():
    """A setting that `to_rows` forgot would be silently ignored."""
    changed = {
        "temperature": 0.5,
        "top_k": 1,
        "top_p": 0.5,
        "min_p": 0.5,
        "repetition_penalty": 2.0,
        "presence_penalty": 2.0,
        "frequency_penalty": 2.0,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 2,
        "forced_first_token": 0,
        "forced_last_token": 0,
        "logit_bias": {0: 1.0},
        "sequence_bias": {(0,): 1.0},
        "banned_tokens": [0],
        "banned_sequences": [[0]],
        "suppressed_first_tokens": [0],
    }
    assert {field.name for field in dataclasses.fields(Sampling)} == {*changed, "seed"}
    plain = jax.tree.leaves(rows_of())
    for name, value in changed.items():
        leaves = jax.tree.leaves(rows_of(**{name: value}))
        assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(leaves, plain, strict=True)), name


def test_settings_of_rows_follow_them_and_settings_for_all_stay():
    sampling = Sampling(
        temperature=[0.5, 1.0, 2.0],
        top_p=0.9,
        seed=np.array([7, 8, 9]),
        logit_bias=[{1: 1.0}, {}, {3: 2.0}],
        banned_tokens=[4, 5, 6],
        banned_sequences=[[[1, 2]], [], [[3, 4]]],
    )
    order = np.array([2, 0])
    found = select_rows(sampling, order, batch=3)
    assert found.temperature.tolist() == [2.0, 0.5]
    assert found.seed.tolist() == [9, 7]
    assert found.top_p == 0.9
    assert found.logit_bias == [{3: 2.0}, {1: 1.0}]
    assert found.banned_sequences == [[[3, 4]], [[1, 2]]]
    # Three ids for all rows are not one for each of three rows.
    assert [list(row) for row in found.banned_tokens] == [[4, 5, 6]]
