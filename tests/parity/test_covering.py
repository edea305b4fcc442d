"""Covering designs: all combinations, few rows, useful prefixes, impossible ones left out."""

from __future__ import annotations

import math

import pytest

from fabench.parity.covering import coverage, design

SIZES = (8, 7, 3, 6, 6, 4, 9, 8, 3)


def always(row: tuple[int, ...]) -> bool:
    return True


def test_a_pairwise_design_has_every_pair_in_few_rows() -> None:
    rows = design(SIZES, 2, always, 200)
    assert coverage(rows, SIZES, 2) == 1.0
    assert 9 * 8 <= len(rows) <= 100


def test_a_three_wise_design_has_every_triple() -> None:
    sizes = (4, 3, 3, 2, 5)
    rows = design(sizes, 3, always, 1000, candidates=2)
    assert coverage(rows, sizes, 3) == 1.0
    assert len(rows) < math.prod(sizes) / 2


def test_any_prefix_is_useful() -> None:
    rows = design(SIZES, 2, always, 200)
    half = coverage(rows[: len(rows) // 2], SIZES, 2)
    assert half > 0.7
    assert coverage(rows[:20], SIZES, 2) > 0.35


def test_impossible_rows_never_occur_and_what_is_possible_is_covered() -> None:
    def possible(row: tuple[int, ...]) -> bool:
        return not (row[0] == 0 and row[1] == 1)

    def pair_possible(a: int, i: int, b: int, j: int) -> bool:
        return {(a, i), (b, j)} != {(0, 0), (1, 1)}

    sizes = (3, 3, 3)
    rows = design(sizes, 2, possible, 100, pair_possible=pair_possible)
    assert all(map(possible, rows))
    assert coverage(rows, sizes, 2) == pytest.approx(26 / 27)


def test_the_limit_and_the_first_rows_hold() -> None:
    rows = design(SIZES, 2, always, 10, first=[(0,) * 9, (1,) * 9])
    assert len(rows) == 10
    assert rows[:2] == [(0,) * 9, (1,) * 9]
    assert rows == design(SIZES, 2, always, 10, first=[(0,) * 9, (1,) * 9])
