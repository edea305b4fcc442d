"""The winsorised variance and its two corrections."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fabench.diff.winsor import FACTORS, factors, pooled_variance, winsorise
from winsor_factors import simulate


def test_a_spike_is_pulled_in_to_two_and_a_half_scaled_mads():
    y = np.array([[0.0, 1.0, 2.0, 3.0, 100.0]])
    assert winsorise(y)[0].tolist() == [0.0, 1.0, 2.0, 3.0, pytest.approx(2 + 2.5 * 1.4826 * 1.0)]


def test_rounds_that_agree_are_left_as_they_are():
    y = np.random.default_rng(0).uniform(0, 1, (50, 2))
    assert (winsorise(y) == y).all()


@pytest.mark.parametrize("rounds", [3, 5, 10, 20])
def test_the_factors_are_those_of_normal_rounds(rounds):
    bias, nu = simulate(rounds, 200_000)
    assert factors(rounds)[0] == pytest.approx(bias, rel=0.01)
    assert factors(rounds)[1] == pytest.approx(nu, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [*FACTORS, 30, 40, 60, 100])
def test_every_factor_and_the_fits_beyond_the_table(rounds):
    bias, nu = simulate(rounds, 1_000_000)
    assert factors(rounds)[0] == pytest.approx(bias, rel=0.005)
    assert factors(rounds)[1] == pytest.approx(nu, rel=0.02)


def test_beyond_the_table_the_factors_go_on_where_it_ends():
    last = max(FACTORS)
    assert factors(last + 1)[0] == pytest.approx(factors(last)[0], abs=0.005)
    assert factors(last)[1] < factors(last + 1)[1] < factors(last)[1] + 1.5
    assert factors(10**6)[0] == pytest.approx(0.9776, abs=1e-4)


def test_a_variance_of_one_round_is_refused():
    with pytest.raises(ValueError, match="at least 2 rounds, got 1"):
        factors(1)


def test_pooled_variance_is_unbiased_for_normal_rounds():
    rng = np.random.default_rng(3)
    s2, _ = pooled_variance(rng.normal(0, 2, (40_000, 5)), rng.normal(0, 2, (40_000, 8)))
    assert s2.mean() == pytest.approx(4.0, rel=0.02)


def test_a_side_with_one_round_adds_nothing():
    rng = np.random.default_rng(4)
    many, one = rng.normal(size=(100, 6)), rng.normal(0, 100, (100, 1))
    s2, nu = pooled_variance(many, one)
    alone, nu_alone = pooled_variance(one, many)
    np.testing.assert_allclose(s2, alone)
    assert nu == nu_alone == pytest.approx(factors(6)[1])


def test_one_round_on_both_sides_has_no_variance():
    s2, nu = pooled_variance(np.zeros((3, 1)), np.zeros((3, 1)))
    assert all(math.isnan(x) for x in s2)
    assert nu == 0.0


def test_one_spike_in_twenty_rounds_barely_moves_the_variance():
    rng = np.random.default_rng(5)
    y = rng.normal(0, 0.004, (2000, 10))
    spiked = y.copy()
    spiked[:, 0] += 0.2
    clean, _ = pooled_variance(y, y)
    hit, _ = pooled_variance(spiked, y)
    plain = (spiked.var(axis=1, ddof=1) + y.var(axis=1, ddof=1)) / 2
    assert hit.mean() < 1.6 * clean.mean()
    assert plain.mean() > 50 * clean.mean()
