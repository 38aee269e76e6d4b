"""The statistics of certification against scipy, published sample sizes and simulation."""

import numpy as np
import pytest
from scipy import stats

from specjax.certify.evidence import (
    ChiSquare,
    distance,
    fit,
    homogeneous,
    log_e_value,
    noise_floor,
    uniform_places,
)

LAW = np.array([0.4, 0.3, 0.2, 0.1])


def test_a_fit_is_pearsons_statistic():
    counts = np.array([430, 280, 210, 80])
    expected = stats.chisquare(counts, LAW * 1000)
    found = fit(counts, LAW)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.freedom, found.draws) == (3, 1000)


def test_tables_add_up():
    counts = np.array([430, 280, 210, 80])
    both = fit(counts, LAW) + fit(counts[::-1], LAW[::-1])
    assert both.statistic == pytest.approx(2 * fit(counts, LAW).statistic)
    assert (both.freedom, both.draws) == (6, 2000)


def test_what_the_law_excludes_is_no_matter_of_chance():
    assert fit(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0])).p_value == 0
    assert log_e_value(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0])) == np.inf


def test_rare_outcomes_are_pooled_and_common_ones_stay_alone():
    law = np.append([0.5, 0.25], np.full(1024, 0.25 / 1024))
    rng = np.random.default_rng(0)
    found = fit(rng.multinomial(1024, law), law)
    # A quarter of a count is expected of a rare token, and ten of a bin: 25 bins of 40 tokens.
    assert found.freedom == 25 + 2 - 1
    # All rare tokens but one missing is seen, though none of them is expected once.
    assert fit(np.append([600, 300], np.append(124, np.zeros(1023))), law).p_value < 1e-6


def test_p_values_are_uniform_under_the_law():
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.full(50, 0.5))
    p_values = [fit(rng.multinomial(2000, law), law).p_value for _ in range(500)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "bins, difference, draws",
    ((8, 0.05, 6.9e3), (8, 0.01, 171e3), (32, 0.02, 61e3), (128, 0.005, 1.55e6), (1024, 0.02, 227e3)),
)
def test_detectable_differences_need_known_numbers_of_draws(bins, difference, draws):
    """At level 1e-6 and power 0.99, from noncentral chi-square tables."""
    found = ChiSquare(freedom=bins - 1, draws=int(draws)).detectable(1e-6)
    assert found == pytest.approx(difference, rel=0.02)


def test_a_difference_of_the_detectable_size_is_found():
    rng = np.random.default_rng(2)
    law = np.full(16, 1 / 16)
    level, draws = 1e-3, 4000
    difference = fit(np.full(16, draws / 16), law).detectable(level)
    other = law + np.where(np.arange(16) % 2, 1, -1) * 2 * difference / 16
    found = [fit(rng.multinomial(draws, other), law).p_value < level for _ in range(300)]
    assert np.mean(found) > 0.97


def test_two_samples_are_compared_as_scipy_does():
    left, right = np.array([300, 200, 100]), np.array([500, 450, 250])
    expected = stats.chi2_contingency([left, right], correction=False)
    found = homogeneous(left, right)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_two_samples_of_one_law_agree_and_of_two_laws_do_not():
    rng = np.random.default_rng(3)
    law = rng.dirichlet(np.full(30, 0.3))
    other = 0.7 * law + 0.3 * rng.dirichlet(np.full(30, 0.3))
    same = [homogeneous(*rng.multinomial(400, law, 2)).p_value for _ in range(300)]
    assert np.mean(np.array(same) < 0.01) < 0.04
    assert homogeneous(rng.multinomial(2000, law), rng.multinomial(2000, other)).p_value < 1e-6


def test_the_distance_of_two_samples_of_one_law_is_the_noise_floor():
    rng = np.random.default_rng(4)
    law = rng.dirichlet(np.full(40, 1.0))
    pairs = [rng.multinomial(n, law) for n in (300, 500)]
    seen = np.mean([distance(rng.multinomial(300, law), rng.multinomial(500, law)) for _ in range(300)])
    assert noise_floor(*pairs) == pytest.approx(seen, rel=0.1)


def test_evidence_rarely_speaks_against_the_truth_at_any_time():
    """Looked at after every tenth draw, over 500 runs."""
    rng = np.random.default_rng(5)
    level, rejected = 0.05, 0
    for _ in range(500):
        draws = rng.choice(4, 400, p=LAW)
        looks = [np.bincount(draws[:n], minlength=4) for n in range(10, 401, 10)]
        rejected += max(log_e_value(counts, LAW) for counts in looks) >= -np.log(level)
    assert rejected / 500 <= level


def test_evidence_grows_against_another_law():
    rng = np.random.default_rng(6)
    other = np.array([0.3, 0.3, 0.25, 0.15])
    values = [log_e_value(rng.multinomial(n, other), LAW) for n in (100, 1000, 10_000)]
    assert values[2] > 100 > values[0]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_draws_of_any_law_become_uniform_numbers(order):
    """And draws of another law show where in the order they lie."""
    rng = np.random.default_rng(7)
    own = uniform_places(rng.choice(4, 20_000, p=LAW), LAW, np.array(order), seed=1)
    assert stats.kstest(own, "uniform").pvalue > 1e-4
    other = uniform_places(np.full(20_000, order[0]), LAW, np.array(order), seed=1)
    assert other.max() <= LAW[order[0]]


def test_the_impossible_has_no_place():
    places = uniform_places(np.array([0, 1]), np.array([1.0, 0.0]), np.arange(2), seed=0)
    assert np.isnan(places).tolist() == [False, True]
