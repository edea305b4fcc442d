"""The moderated variance, against closed forms and against planted priors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import polygamma

from fabench.diff.moderated import NO_PRIOR, Prior, fit_prior, moderate, satterthwaite, trigamma_inverse


@pytest.mark.parametrize("y", [1e-4, 0.01, 0.5, 1.0, 3.0, 50.0, 1e5])
def test_trigamma_inverse_inverts(y):
    assert trigamma_inverse(float(polygamma(1, y))) == pytest.approx(y, rel=1e-6)


@pytest.mark.parametrize("nu0", [4.0, 10.0, 40.0])
def test_a_planted_prior_is_found(nu0):
    rng, nu, s2_0, rows = np.random.default_rng(8), 18.0, 2.5e-5, 20_000
    variance = s2_0 * nu0 / rng.chisquare(nu0, rows)
    s2 = variance * rng.chisquare(nu, rows) / nu
    prior = fit_prior(s2, np.full(rows, nu), 20)
    assert prior.nu == pytest.approx(nu0, rel=0.1)
    assert prior.s2 == pytest.approx(s2_0, rel=0.02)
    assert prior.rows == rows


def test_rows_of_one_variance_give_an_infinite_prior():
    rng = np.random.default_rng(9)
    s2 = 3e-6 * rng.chisquare(8, 5000) / 8
    prior = fit_prior(s2, np.full(5000, 8.0), 20)
    assert prior.nu > 300
    assert prior.s2 == pytest.approx(3e-6, rel=0.02)
    shrunken, nu = moderate(s2, np.full(5000, 8.0), Prior(math.inf, 3e-6, 5000))
    assert (shrunken == 3e-6).all()
    assert (nu == 5000 * 8).all()


def test_too_few_rows_lend_nothing():
    s2, nu = np.full(19, 1e-5), np.full(19, 8.0)
    assert fit_prior(s2, nu, 20) == NO_PRIOR
    assert moderate(s2, nu, NO_PRIOR)[0] is s2


def test_rows_without_a_variance_take_the_prior_and_are_not_asked_for_it():
    s2 = np.array([*np.full(30, 1e-5), math.nan])
    nu = np.array([*np.full(30, 8.0), 0.0])
    assert fit_prior(s2, nu, 20).rows == 30
    shrunken, degrees = moderate(s2, nu, Prior(5.0, 2e-5, 30))
    assert shrunken[-1] == pytest.approx(2e-5)
    assert degrees[-1] == 5.0


def test_shrinking_is_the_weighted_mean_of_prior_and_row():
    shrunken, nu = moderate(np.array([1.0, 4.0, 1.0]), np.array([6.0, 6.0, 6.0]), Prior(3.0, 2.0, 20))
    assert shrunken.tolist() == pytest.approx([(3 * 2 + 6 * 1) / 9, (3 * 2 + 6 * 4) / 9, (3 * 2 + 6 * 1) / 9])
    assert nu.tolist() == [9.0, 9.0, 9.0]


def test_satterthwaite_of_equal_parts_adds_their_degrees_of_freedom():
    one = np.array([2.0])
    assert satterthwaite([(one, np.array([5.0])), (one, np.array([5.0]))])[0] == pytest.approx(10.0)


def test_satterthwaite_is_led_by_the_larger_part():
    nu = satterthwaite([(np.array([100.0]), np.array([5.0])), (np.array([1.0]), np.array([1000.0]))])
    assert nu[0] == pytest.approx(5.0, rel=0.03)


def test_satterthwaite_of_parts_known_exactly_is_infinite():
    assert satterthwaite([(np.array([1.0]), np.array([math.inf]))])[0] == math.inf
