"""Shift and variance of rows."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabench.diff import estimates
from fabench.diff.estimates import Rounds, estimate, hodges_lehmann, shift_scale

values = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


@given(values, values)
def test_the_shift_is_the_median_of_all_differences(old, new):
    expected = statistics.median(b - a for a, b in itertools.product(old, new))
    assert hodges_lehmann(np.array([old]), np.array([new]))[0] == pytest.approx(expected, abs=1e-12)


@given(values, values)
def test_swapping_the_files_turns_the_sign(old, new):
    there, back = hodges_lehmann(np.array([old]), np.array([new])), hodges_lehmann(np.array([new]), np.array([old]))
    assert there[0] == pytest.approx(-back[0], abs=1e-12)


def test_many_rows_are_done_in_blocks_with_one_result(monkeypatch):
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(50, 4)), rng.normal(size=(50, 6))
    whole = hodges_lehmann(old, new)
    monkeypatch.setattr(estimates, "PAIR_BUDGET", 100)
    assert (hodges_lehmann(old, new) == whole).all()


def test_rows_of_different_round_counts_are_each_taken_with_their_own():
    nan = math.nan
    old = Rounds(np.array([[1.0, 2.0, 3.0], [5.0, nan, nan], [1.0, 2.0, nan]]), np.array([3, 1, 2]))
    new = Rounds(np.array([[2.0, 3.0], [7.0, nan], [1.0, nan]]), np.array([2, 1, 1]))
    out = estimate(old, new)
    assert out.d.tolist() == [0.5, 2.0, -0.5]
    assert out.nu[1] == 0.0
    assert math.isnan(out.s2[1])
    assert out.nu[0] > out.nu[2] > 0


def test_a_row_without_rounds_has_no_estimate():
    out = estimate(Rounds(np.full((1, 2), math.nan), np.array([0])), Rounds(np.array([[1.0, 2.0]]), np.array([2])))
    assert math.isnan(out.d[0])
    assert out.nu[0] == 0.0


@pytest.mark.parametrize("rounds", [5, 7, 10, 20])
def test_the_scale_is_the_variance_of_the_shift(rounds):
    rng = np.random.default_rng(rounds)
    shifts = hodges_lehmann(rng.normal(size=(20_000, rounds)), rng.normal(size=(20_000, rounds)))
    assert shift_scale(rounds, rounds) == pytest.approx(shifts.var(), rel=0.04)
