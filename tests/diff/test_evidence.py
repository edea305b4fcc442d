"""Evidence that is missing, extreme or of many kinds at once: every row gets its own answer and none harms another."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fabench.diff.estimates import Rounds
from fabench.diff.evidence import (
    Context,
    least_guard_p,
    mann_whitney,
    quantile,
    rounds_needed,
    timer_floor,
    upper_tail,
    weigh,
)
from fabench.diff.thresholds import Thresholds

LIMITS = Thresholds()


def context(rows, **fields):
    values = {
        "margin": 0.01,
        "equivalence": 0.01,
        "shift": 0.0,
        "tau2": 0.0,
        "tau_nu": math.inf,
        "floor": 1e-14,
    } | fields
    arrays = {name: np.full(rows, float(value)) for name, value in values.items() if name != "tested"}
    return Context(**arrays, tested=np.array(fields.get("tested", [True] * rows)))


def packed(rows):
    width = max(map(len, rows))
    y = np.full((len(rows), width), math.nan)
    for at, row in enumerate(rows):
        y[at, : len(row)] = row
    return Rounds(y, np.array([len(row) for row in rows]))


def judged(old, new, **fields):
    return weigh(packed(old), packed(new), context(len(old), **fields), LIMITS)


def normal(rng, rows, rounds, shift=0.0):
    return (shift + 0.003 * rng.standard_normal((rows, rounds))).tolist()


row = st.lists(st.floats(-1.0, 1.0), min_size=0, max_size=7)


@given(st.lists(st.tuples(row, row), min_size=1, max_size=30))
def test_no_rows_make_an_error_or_a_number_out_of_range(pairs):
    old, new = ([pair[side] for pair in pairs] for side in (0, 1))
    evidence = weigh(packed([*old, [0.0]]), packed([*new, [0.0]]), context(len(pairs) + 1), LIMITS)
    needed = rounds_needed(evidence, context(len(pairs) + 1), LIMITS)
    for at, (a, b) in enumerate(zip(old, new, strict=True)):
        assert math.isnan(evidence.d[at]) == (not a or not b)
        assert (evidence.variance[at] > 0) == (bool(a) and bool(b) and len(a) + len(b) > 2)
        assert not (evidence.slow[at] and evidence.fast[at])
        assert 0.0 <= evidence.guard_slow[at] <= 1.0
        assert math.isnan(needed[at]) or needed[at] >= LIMITS.min_rounds
        if math.isfinite(evidence.low[at]):
            assert evidence.low[at] <= evidence.equivalence_low[at] <= evidence.d[at] <= evidence.equivalence_high[at]


def test_a_row_without_rounds_changes_nothing_for_the_others():
    rng = np.random.default_rng(0)
    old, new = normal(rng, 40, 8), normal(rng, 40, 8, 0.03)
    alone = judged(old, new)
    beside = judged([*old, []], [*new, [0.0] * 8])
    np.testing.assert_allclose(alone.p_slow, beside.p_slow[:40])
    np.testing.assert_array_equal(alone.slow, beside.slow[:40])
    assert math.isnan(beside.d[40])
    assert not beside.slow[40]


def test_swapping_the_files_swaps_slow_and_fast():
    rng = np.random.default_rng(1)
    old, new = normal(rng, 30, 7), normal(rng, 30, 7, 0.02)
    there, back = judged(old, new), judged(new, old)
    np.testing.assert_allclose(there.d, -back.d)
    np.testing.assert_allclose(there.p_slow, back.p_fast)
    np.testing.assert_array_equal(there.slow, back.fast)
    np.testing.assert_array_equal(there.same, back.same)


def test_rows_that_are_not_to_be_judged_get_numbers_and_take_no_part_in_the_correction():
    rng = np.random.default_rng(2)
    old, new = normal(rng, 30, 8), normal(rng, 30, 8, 0.05)
    tested = [True] + [False] * 29
    evidence = judged(old, new, tested=tested)
    assert evidence.tests == 1
    assert evidence.slow.tolist() == tested
    assert evidence.adjusted_slow[0] == evidence.p_slow[0]
    assert np.isfinite(evidence.low).all()


def test_the_guard_holds_back_what_the_moderated_test_alone_would_call_slower():
    """Four rounds of five apart and one far below: the shift is large, the ranks are not."""
    old = [[0.0, 0.001, 0.002, 0.003, 0.004]] * 30
    new = [[0.05, 0.051, 0.052, -0.2, -0.2]] + [[0.0, 0.001, 0.002, 0.003, 0.0041]] * 29
    evidence = judged(old, new)
    assert evidence.guard_slow[0] > LIMITS.guard_p
    assert not evidence.slow[0]


def test_the_canarys_move_widens_the_threshold_and_not_the_interval():
    rng = np.random.default_rng(3)
    old, new = normal(rng, 30, 8), normal(rng, 30, 8, 0.02)
    still, moved = judged(old, new), judged(old, new, shift=0.012)
    np.testing.assert_allclose(moved.threshold - still.threshold, 0.012)
    np.testing.assert_allclose(moved.low, still.low)
    assert moved.slow.sum() < still.slow.sum()


def test_session_variance_widens_everything_and_takes_its_degrees_of_freedom():
    rng = np.random.default_rng(4)
    old, new = normal(rng, 30, 8), normal(rng, 30, 8)
    known, poor = (judged(old, new, tau2=0.005**2, tau_nu=nu) for nu in (math.inf, 5.0))
    assert (known.se > judged(old, new).se + 0.004).all()
    assert (poor.nu < 8).all()
    assert ((poor.high - poor.low) > (known.high - known.low)).all()


def test_identical_rounds_have_the_uncertainty_of_their_clock():
    old, new = [[0.0] * 8] * 30, [[0.0] * 8] * 30
    floor = float(timer_floor(np.array([500.0]), np.array([1.0]), np.array([50_000.0]))[0])
    assert floor == pytest.approx((0.01) ** 2 / 12)
    evidence = judged(old, new, floor=floor)
    assert (evidence.variance >= floor).all()
    assert evidence.variance == pytest.approx(np.full(30, floor), rel=0.15)
    assert evidence.same.all()


def test_ties_within_and_between_files_take_the_corrected_normal():
    old, new = packed([[1.0, 1.0, 1.0, 2.0, 2.0]]), packed([[2.0, 3.0, 3.0, 3.0, 3.0]])
    slower, faster = mann_whitney(old, new)
    kwargs = {"method": "asymptotic"}
    assert slower[0] == scipy.stats.mannwhitneyu(new.y[0], old.y[0], alternative="greater", **kwargs).pvalue
    assert faster[0] == scipy.stats.mannwhitneyu(old.y[0], new.y[0], alternative="greater", **kwargs).pvalue


def test_the_least_guard_p_is_the_exact_tests_own():
    for old, new in ((5, 5), (7, 7), (10, 6)):
        slower, _ = mann_whitney(packed([list(range(old))]), packed([list(range(100, 100 + new))]))
        assert least_guard_p(old, new) == pytest.approx(slower[0])


@pytest.mark.parametrize("nu", [1.0, 4.5, 30.0, 1e6, math.inf])
def test_tails_and_quantiles_are_students(nu):
    student = scipy.stats.norm if math.isinf(nu) else scipy.stats.t(nu)
    for p in (0.6, 0.95, 0.9999):
        t = quantile(p, np.array([nu]))
        assert t[0] == pytest.approx(student.ppf(p), rel=1e-6)
        assert upper_tail(t, np.array([nu]))[0] == pytest.approx(1 - p, rel=1e-6)
