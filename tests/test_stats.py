"""Quantiles of one row's samples and the interval of their median."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fabench import stats

finite = st.lists(st.floats(1.0, 1e12), min_size=1, max_size=60)


def coverage(n: int, k: int) -> float:
    """P(X_(k) <= median <= X_(n+1-k)) by counting every pattern of samples below and above the median."""
    inside = sum(k <= sum(below) <= n - k for below in itertools.product((0, 1), repeat=n))
    return inside / 2**n


@pytest.mark.parametrize("n", range(stats.FEWEST, 16))
def test_rank_is_the_largest_that_still_covers_95_percent(n):
    k = stats.lower_rank(n)
    assert coverage(n, k) >= 0.95
    assert coverage(n, k + 1) < 0.95


@pytest.mark.parametrize(("n", "ranks"), [(6, (1, 6)), (10, (2, 9)), (30, (10, 21)), (60, (22, 39)), (480, (219, 262))])
def test_interval_takes_the_ranks_that_the_binomial_gives(n, ranks):
    assert stats.median_interval([float(i) for i in range(1, n + 1)]) == ranks
    assert 1 - 2 * scipy.stats.binom.cdf(ranks[0] - 1, n, 0.5) >= 0.95
    assert 1 - 2 * scipy.stats.binom.cdf(ranks[0], n, 0.5) < 0.95


@pytest.mark.parametrize("n", range(1, stats.FEWEST))
def test_with_too_few_samples_the_interval_is_the_whole_range(n):
    samples = list(range(10, 10 + n))
    assert stats.median_interval(samples) == (10, 10 + n - 1)


def test_higher_confidence_never_narrows_the_interval():
    samples = np.random.default_rng(1).normal(size=80)
    widths = [high - low for low, high in (stats.median_interval(samples, c) for c in (0.5, 0.8, 0.9, 0.95, 0.99))]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_interval_covers_the_true_median_of_a_skewed_distribution_as_often_as_it_says():
    rng = np.random.default_rng(7)
    draws = rng.exponential(size=(4000, 30))
    hits = sum(low <= np.log(2) <= high for low, high in (stats.median_interval(row) for row in draws))
    assert 0.95 <= hits / 4000 <= 0.97  # exact coverage at n = 30 is 0.957


@given(finite)
def test_quantiles_are_ordered_and_complete(samples):
    q = stats.quantiles(samples)
    assert list(q) == ["min", "p10", "p25", "median", "p75", "p90", "max", "ci_low", "ci_high"]
    values = [q[name] for name in ("min", "p10", "p25", "median", "p75", "p90", "max")]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(values))
    assert q["min"] <= q["ci_low"] <= q["median"] * (1 + 1e-12)
    assert q["median"] <= q["ci_high"] * (1 + 1e-12)
    assert q["ci_high"] <= q["max"]
    assert q["min"] == min(samples)
    assert q["max"] == max(samples)


@given(finite, st.randoms())
def test_quantiles_do_not_depend_on_the_order_of_samples(samples, random):
    shuffled = list(samples)
    random.shuffle(shuffled)
    assert stats.quantiles(shuffled) == stats.quantiles(samples)


def test_quantiles_of_known_samples():
    q = stats.quantiles([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (q["min"], q["p25"], q["median"], q["p75"], q["max"]) == (1, 2, 3, 4, 5)
    assert q["p10"] == pytest.approx(1.4)
    assert q["p90"] == pytest.approx(4.6)


def test_samples_already_sorted_by_the_caller_are_left_alone():
    samples = [3.0, 1.0, 2.0]
    stats.quantiles(samples)
    assert samples == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [1.0, float("inf")], [[1.0, 2.0], [3.0, 4.0]]])
def test_samples_that_are_no_samples_are_refused(bad):
    with pytest.raises(ValueError, match="samples must be"):
        stats.quantiles(bad)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 95.0])
def test_confidence_outside_0_1_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence must be within"):
        stats.median_interval([1.0, 2.0], confidence)


def test_importing_stats_imports_no_scipy_and_no_torch():
    code = "import sys, fabench.stats; sys.exit('scipy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
