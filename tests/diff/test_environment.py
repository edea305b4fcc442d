"""What makes times comparable: sessions, canaries, clocks, throttling, software; and what the notes say of it."""

from __future__ import annotations

import pytest

import resultfiles as rf
from diff_files import CASES, diff, rounds, table, write
from fabench.names import FLAGS
from fabench.views import notes

ROW = (CASES[7], "sdpa-flash")
"""Long, causal and compute-bound."""


def pair(tmp_path, *, old=None, new=None, factors=None, session_id="session1", **rows):
    """Two files, in two sessions unless told otherwise."""
    first = write(tmp_path / "old.jsonl", table(1, **rows), **(old or {}))
    return first, write(tmp_path / "new.jsonl", table(2, factors=factors, **rows), session_id=session_id, **(new or {}))


def clocked(mhz):
    return {"telemetry": {"sm_clock_mhz_mean": mhz, "polls": 10}}


def test_two_sessions_without_calibration_use_the_wide_margin_and_say_so(tmp_path):
    output = diff(*pair(tmp_path, factors={ROW: 1.03})).output
    assert "24 SAME" in output
    assert "UNCALIBRATED, margin 5 %: measured in two sessions of unknown noise" in output
    assert "fabench run --ab" in output


def test_a_large_slowdown_is_found_without_calibration(tmp_path):
    assert diff(*pair(tmp_path, factors={ROW: 1.09})).exit_code == 1


def test_one_session_uses_the_narrow_margin(tmp_path):
    result = diff(*pair(tmp_path, factors={ROW: 1.03}, session_id="session0"))
    assert result.exit_code == 1
    assert "margin 1 %: measured interleaved, in one session (24 rows)" in result.output


def test_a_margin_that_is_asked_for_holds_everywhere(tmp_path):
    files = pair(tmp_path, factors={ROW: 1.03})
    assert diff(*files, "--margin", "1%").exit_code == 1
    assert diff(*files, "--margin", "4%").exit_code == 0
    assert diff(*files, "--margin", "0").exit_code == 2
    refused = diff(*files, "--margin", "5%", "--effect", "3%")
    assert refused.exit_code == 2
    assert "'effect' must be larger than the margin" in refused.output


def test_two_cards_of_one_model_are_told_apart(tmp_path):
    cards = [{"session": {"host_hash": "h", "gpu_uuid_hash": card}} for card in ("one", "two")]
    output = diff(*pair(tmp_path, old=cards[0], new=cards[1])).output
    assert "measured on two cards of one model" in output


@pytest.mark.parametrize("move", [0.96, 1.04])
def test_a_canary_that_moved_makes_compute_bound_rows_env_shift(tmp_path, move):
    new = {"canary": {"gemm_flops": {"bf16": rf.GEMM_FLOPS * move}}}
    result = diff(*pair(tmp_path, new=new, factors={ROW: 1.2}))
    assert result.exit_code == 3
    assert "ENV_SHIFT" in result.output
    assert "its canary takes" in result.output
    assert "REGRESSED" not in result.output


def test_a_canary_of_another_bound_class_leaves_a_row_alone(tmp_path):
    new = {"canary": {"copy_bandwidth": rf.COPY_BANDWIDTH * 0.9}}
    output = diff(*pair(tmp_path, new=new, cases=[CASES[7]])).output
    assert "3 SAME" in output


def test_a_canary_that_moved_a_little_widens_the_threshold(tmp_path):
    near = {ROW: 1.0225}
    files = pair(tmp_path, factors=near, session_id="session0", noise=0.001)
    assert diff(*files).exit_code == 1
    moved = {"canary": {"gemm_flops": {"bf16": rf.GEMM_FLOPS / 1.015}}}
    assert diff(*pair(tmp_path, factors=near, session_id="session0", noise=0.001, new=moved)).exit_code == 0


def test_files_without_a_canary_are_compared_and_say_so(tmp_path):
    files = pair(tmp_path)
    rf.mutate(files[1], lambda lines: [x for x in lines if x["rec"] != "canary"])
    result = diff(*files)
    assert result.exit_code == 0
    assert "no canary was recorded in both files" in result.output


def test_a_throttled_round_makes_its_row_env_shift(tmp_path):
    rows = [*rounds(*ROW, seed=2), *rounds(CASES[0], seed=2)]
    rows[4] = rows[4].model_copy(update={"flags": ["throttled"]})
    old = write(tmp_path / "o", [*rounds(*ROW, seed=1), *rounds(CASES[0], seed=1)])
    result = diff(old, write(tmp_path / "n", rows))
    assert result.exit_code == 3
    assert "1 ENV_SHIFT" in result.output
    assert "throttled (heat or power brake) in new" in result.output


def test_other_flags_do_not_decide(tmp_path):
    assert diff(*pair(tmp_path, flags=["short", "hot", "drift", "no_telemetry"])).exit_code == 0


def test_slower_in_time_and_not_in_cycles_is_the_clocks_doing(tmp_path):
    old = write(tmp_path / "o", rounds(*ROW, seed=1, **clocked(1980)))
    new = write(tmp_path / "n", rounds(*ROW, seed=2, factor=1.1, **clocked(1800)), session_id="other")
    result = diff(old, new)
    assert result.exit_code == 3
    assert "in clock cycles: the clock moved, not the kernel" in result.output
    assert "changed: SM clock while timing 1980 -> 1800 MHz" in result.output


def test_slower_in_time_and_in_cycles_regresses(tmp_path):
    old = write(tmp_path / "o", rounds(*ROW, seed=1, **clocked(1980)))
    new = write(tmp_path / "n", rounds(*ROW, seed=2, factor=1.1, **clocked(1980)), session_id="other")
    assert diff(old, new).exit_code == 1


def test_within_one_session_a_lower_clock_is_the_kernels_own_doing(tmp_path):
    """Interleaved sides share the card: the one that clocks lower draws more power."""
    old = write(tmp_path / "o", rounds(*ROW, seed=1, **clocked(1980)))
    new = write(tmp_path / "n", rounds(*ROW, seed=2, factor=1.1, **clocked(1800)))
    assert diff(old, new).exit_code == 1


def test_every_difference_of_software_is_a_note(tmp_path):
    old = {"software": {"python": "3.12.3", "torch": "2.11.0", "driver": "580.95", "backends": {"flash_attn": "2.8.3"}}}
    new = {
        "software": {
            "python": "3.12.3", "torch": "2.12.0", "driver": "590.10", "triton": "3.6.0",
            "backends": {"flash_attn": "2.8.4"}, "variables": {"NVIDIA_TF32_OVERRIDE": "0"},
        }
    }  # fmt: skip
    output = diff(*pair(tmp_path, old=old, new=new)).output
    for change in (
        "torch 2.11.0 -> 2.12.0",
        "driver 580.95 -> 590.10",
        "flash_attn 2.8.3 -> 2.8.4",
    ):
        assert f"changed: {change}\n" in output
    assert "only in new: NVIDIA_TF32_OVERRIDE 0, triton 3.6.0\n" in output
    assert "python" not in output


def test_other_suites_are_compared_and_named(tmp_path):
    output = diff(*pair(tmp_path, new={"header": {"suite_hash": "ffff", "suite": {"name": "other"}}})).output
    assert "the suites differ: 'example' 0123456789ab and 'other' ffff" in output


def test_a_merged_file_of_two_sessions_is_interleaved_with_its_like(tmp_path):
    def both(name, seed):
        first = write(tmp_path / f"{name}0", table(seed, cases=CASES[:2]), session_id="s0")
        second = write(tmp_path / f"{name}1", table(seed, cases=CASES[2:]), session_id="s1")
        from click.testing import CliRunner

        from fabench.cli import main

        out = tmp_path / name
        done = CliRunner().invoke(main, ["merge", str(first), str(second), "--out", str(out)])
        assert done.exit_code == 0, done.output
        return out

    output = diff(both("a", 1), both("b", 2)).output
    assert "margin 1 %: measured interleaved, in one session (24 rows)" in output


def test_flags_are_footnotes_of_rows_that_changed_and_say_which_file_has_them(tmp_path):
    case, backend = ROW
    old = write(tmp_path / "o", rounds(case, backend, seed=1, flags=["hot"]))
    rows = rounds(case, backend, seed=2, factor=1.1, flags=["hot"])
    rows[3] = rows[3].model_copy(update={"flags": ["hot", "drift"]})
    output = diff(old, write(tmp_path / "n", rows)).output
    assert "hot: one sample is longer than 10 ms" in output
    assert "drift (new only): the card did not return" in output
    unchanged = diff(old, write(tmp_path / "u", rounds(case, backend, seed=2, flags=["hot"]))).output
    assert "hot:" not in unchanged


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag != "throttled"])
def test_every_flag_is_a_footnote_of_a_row_that_changed_and_decides_nothing(tmp_path, flag):
    old = write(tmp_path / "o", rounds(*ROW, seed=1))
    result = diff(old, write(tmp_path / "n", rounds(*ROW, seed=2, factor=1.2, flags=[flag])))
    assert "1 REGRESSED" in result.output
    assert f"{flag} (new only): {notes.FLAGS[flag]}" in result.output


def test_unchecked_rows_are_warned_of(tmp_path):
    output = diff(*pair(tmp_path, flags=["unchecked"])).output
    assert f"24 unchecked rows in {tmp_path}/new.jsonl: a wrong result would go unseen" in output
