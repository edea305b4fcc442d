"""Verdicts of statuses, and which one wins."""

from __future__ import annotations

import itertools

import pytest

import resultfiles as rf
from diff_files import CASES, failing, rounds, write
from fabench import diff
from fabench.diff.gate import GATES
from fabench.diff.verdicts import JUDGED, MEANING, VERDICTS, by_status
from fabench.names import FAILED, SKIPPED, STATUSES

BROKEN = (*FAILED, "oom")


def test_every_pair_of_statuses_has_one_verdict():
    for old, new in itertools.product((None, *STATUSES), repeat=2):
        if (old, new) == (None, None):
            continue
        verdict = by_status(old, new, excluded=False)
        if old == new == "ok":
            assert verdict is None
        else:
            assert verdict in VERDICTS


@pytest.mark.parametrize("new", BROKEN)
def test_ok_to_failed_is_broken(new):
    assert by_status("ok", new, excluded=False) == "BROKEN"


@pytest.mark.parametrize("new", SKIPPED)
def test_ok_to_skipped_loses_coverage(new):
    assert by_status("ok", new, excluded=False) == "COVERAGE_LOST"


@pytest.mark.parametrize("old", BROKEN)
def test_failed_to_ok_is_fixed_and_failed_to_failed_still_fails(old):
    assert by_status(old, "ok", excluded=False) == "FIXED"
    assert {by_status(old, new, excluded=False) for new in (*BROKEN, *SKIPPED)} == {"STILL_FAILING"}


@pytest.mark.parametrize("old", [None, *SKIPPED])
def test_what_was_not_run_before_is_new(old):
    assert {by_status(old, new, excluded=False) for new in ("ok", *BROKEN)} == {"NEW"}


@pytest.mark.parametrize("old", STATUSES)
def test_an_absent_row_is_missing_unless_it_was_left_out(old):
    assert by_status(old, None, excluded=False) == "MISSING"
    assert by_status(old, None, excluded=True) == "SKIPPED"


def test_every_verdict_has_a_meaning_and_the_gating_ones_come_first():
    assert set(MEANING) == set(VERDICTS)
    assert set(VERDICTS[: len(GATES)]) == set(GATES)
    assert set(JUDGED) <= set(VERDICTS)


def verdict(tmp_path, old, new, **fields):
    sides = [diff.load(write(tmp_path / "o", old)), diff.load(write(tmp_path / "n", new, **fields))]
    return diff.judge(*sides, diff.Options()).found.rows[0].verdict


def test_broken_wins_over_other_hardware_method_and_canary(tmp_path):
    case = CASES[0]
    canary = {"gemm_flops": {"bf16": rf.GEMM_FLOPS / 2}}
    assert verdict(tmp_path, rounds(case), failing(case, "sdpa-flash", "oom"), model="X", canary=canary) == "BROKEN"


def test_not_comparable_wins_over_a_shifted_environment(tmp_path):
    canary = {"gemm_flops": {"bf16": rf.GEMM_FLOPS / 2}}
    assert verdict(tmp_path, rounds(CASES[7]), rounds(CASES[7]), model="X", canary=canary) == "NOT_COMPARABLE"


def test_a_shifted_environment_wins_over_a_regression(tmp_path):
    canary = {"gemm_flops": {"bf16": rf.GEMM_FLOPS / 1.3}}
    assert verdict(tmp_path, rounds(CASES[7]), rounds(CASES[7], factor=1.3), canary=canary) == "ENV_SHIFT"


def test_a_regression_wins_over_equivalence_within_the_wider_bound(tmp_path):
    """+3 % across calibrated sessions lies within the 5 % of SAME and is still a regression."""
    old, new = rounds(CASES[7], noise=0.0005), rounds(CASES[7], factor=1.03, noise=0.0005, seed=3)
    limits = diff.Thresholds(margin_uncalibrated=0.01)
    sides = [diff.load(write(tmp_path / "o", old)), diff.load(write(tmp_path / "n", new, session_id="other"))]
    found = diff.judge(*sides, diff.Options(limits=limits)).found
    assert bool(found.evidence.same[0])
    assert found.rows[0].verdict == "REGRESSED"


def test_not_significant_is_not_called_same(tmp_path):
    assert verdict(tmp_path, rounds(CASES[7], noise=0.03), rounds(CASES[7], noise=0.03, seed=4)) == "INCONCLUSIVE"


def test_needed_rounds_grow_with_the_noise_and_stop_where_none_decides(tmp_path):
    def needed(noise, **fields):
        old, new = rounds(CASES[7], noise=noise), rounds(CASES[7], noise=noise, seed=4)
        sides = [diff.load(write(tmp_path / "o", old)), diff.load(write(tmp_path / "n", new, **fields))]
        return diff.judge(*sides, diff.Options()).found.rows[0]

    rows = [needed(noise) for noise in (0.02, 0.04, 0.08)]
    assert all(row.verdict == "INCONCLUSIVE" for row in rows)
    assert rows[0].needed < rows[1].needed < rows[2].needed
    assert rows[2].needed == pytest.approx(16 * rows[0].needed, rel=0.25)
    apart = needed(0.08, session_id="other")
    assert apart.needed is None
    assert "no number of rounds finds +5% with a margin of 5%" in apart.reason


def test_the_needed_rounds_do_find_the_effect(tmp_path):
    """A row that asks for R rounds is then found with about the promised power of 80 %."""
    old, new = rounds(CASES[7], noise=0.02, count=10), rounds(CASES[7], noise=0.02, count=10, seed=12)
    row = diff.judge(
        *(diff.load(write(tmp_path / name, rows)) for name, rows in (("o", old), ("n", new))), diff.Options()
    ).found.rows[0]
    count, found = row.needed, 0
    for seed in range(60):
        files = [
            write(tmp_path / "o", rounds(CASES[7], noise=0.02, count=count, seed=f"a{seed}")),
            write(tmp_path / "n", rounds(CASES[7], noise=0.02, count=count, seed=f"b{seed}", factor=1.05)),
        ]
        found += diff.judge(*map(diff.load, files), diff.Options()).found.rows[0].verdict == "REGRESSED"
    assert 0.6 <= found / 60 <= 1.0
