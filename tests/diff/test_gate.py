"""Geomeans inform, the gate decides."""

from __future__ import annotations

import math

import pytest

from diff_files import CASES, rounds, table, write
from fabench import diff


def judge(tmp_path, old, new, options=None, **fields):
    sides = [diff.load(write(tmp_path / "o", old)), diff.load(write(tmp_path / "n", new, **fields))]
    return diff.judge(*sides, options or diff.Options())


def test_the_geomean_is_that_of_the_rows_ok_in_both(tmp_path):
    new = [row for row in table(2, factor=1.5, noise=0.0) if (row.backend, row.key["Nq"]) != ("online", 1024)]
    found = judge(tmp_path, table(1, noise=0.0), new).geomeans
    assert [(g.backend, g.direction) for g in found] == [
        (b, "forward") for b in ("online", "sdpa-flash", "triton-flash")
    ]
    assert [g.ratio for g in found] == pytest.approx([1.5] * 3)
    assert [(g.common, g.old, g.new) for g in found] == [(6, 8, 6), (8, 8, 8), (8, 8, 8)]


def test_directions_are_kept_apart(tmp_path):
    import resultfiles as rf

    backward = rf.case(2048, direction="backward")
    old = [*rounds(CASES[0]), *rounds(backward)]
    new = [*rounds(CASES[0], factor=1.1), *rounds(backward, factor=0.9)]
    found = {g.direction: g.ratio for g in judge(tmp_path, old, new).geomeans}
    assert found["forward"] == pytest.approx(1.1, rel=0.01)
    assert found["backward"] == pytest.approx(0.9, rel=0.01)


def test_the_interval_covers_a_round_that_was_slow_for_every_row(tmp_path):
    """Rounds, not rows, are resampled: with 24 rows that move together the interval must not shrink by sqrt(24)."""
    rng = __import__("random").Random(5)
    common = [[rng.gauss(0, 0.01) for _ in range(10)] for _ in range(2)]

    def shaken(seed, moves):
        return [
            row.model_copy(update={"quantiles": {k: v * math.exp(moves[row.round]) for k, v in row.quantiles.items()}})
            for row in table(seed, noise=0.0005)
        ]

    found = judge(tmp_path, shaken(1, common[0]), shaken(2, common[1])).geomeans
    expected = 0.01 * math.sqrt(2 / 10) * 1.96 * 2
    for mean in found:
        assert math.log(mean.high / mean.low) == pytest.approx(expected, rel=0.6)


def test_the_interval_covers_the_truth_as_often_as_it_says(tmp_path):
    hits, trials = 0, 30
    for seed in range(trials):
        old = table(f"a{seed}", backends=["sdpa-flash"], noise=0.004)
        new = table(f"b{seed}", backends=["sdpa-flash"], noise=0.004, factor=1.02)
        mean = judge(tmp_path, old, new).geomeans[0]
        hits += mean.low <= 1.02 <= mean.high
    assert hits / trials >= 0.85


def test_rounds_that_some_rows_lack_are_drawn_all_the_same(tmp_path):
    new = [row for row in table(2) if not (row.round == 3 and row.key["Nq"] == 2048)]
    found = judge(tmp_path, table(1), new).geomeans
    assert all(mean.low < mean.ratio < mean.high for mean in found)
    assert all(math.log(mean.high / mean.low) < 0.02 for mean in found)


def test_one_round_has_a_geomean_and_no_interval(tmp_path):
    one = [[row for row in table(seed) if row.round == 0] for seed in (1, 2)]
    assert all((mean.low, mean.high) == (None, None) for mean in judge(tmp_path, *one).geomeans)


def test_equal_files_give_equal_reports(tmp_path):
    first = [g for _ in range(2) for g in judge(tmp_path, table(1), table(2)).geomeans]
    assert first[:3] == first[3:]


def test_failed_comes_before_undecided_and_undecided_before_passed(tmp_path):
    slow = {(CASES[7], "online"): 1.2}
    few = [row for row in table(2) if row.round < 4 or row.backend == "online"]
    assert judge(tmp_path, table(1), few).gate.code == 3
    few = [row for row in table(2, factors=slow) if row.round < 4 or row.backend == "online"]
    failed = judge(tmp_path, table(1), few).gate
    assert (failed.code, failed.word, failed.reasons) == (1, "failed", ("1 REGRESSED",))
    assert judge(tmp_path, table(1), table(2)).gate.word == "passed"


def test_an_improvement_is_no_failure(tmp_path):
    report = judge(tmp_path, table(1), table(2, factor=0.8))
    assert report.gate.code == 0
    assert report.found.counts()["IMPROVED"] == 24
