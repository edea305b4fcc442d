"""Option values of `fabench run` that cannot be: one sentence and exit code 2, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as rf
from fabench.case import Case
from fabench.cli import main
from fabench.errors import UsageError
from fabench.request import like_regime
from fabench.resultfile import read

SUITE = "name: tiny\naxes: {N: 64, d: 16, dtype: fp32, batch: 1, heads: 2}\nbackends: [naive]\n"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--format", "nonsense", "'nonsense' is not one of"),
        ("--timeout", "-1", "not in the range"),
        ("--timeout", "nan", "not a number of seconds"),
        ("--prepare-timeout", "0", "not in the range"),
        ("--seconds", "inf", "not in the range"),
        ("--seconds", "1e300", "--seconds must be at most 600"),
        ("--rounds", "0", "not in the range"),
        ("--rounds", "100000000", "--rounds must be at most 1000, got 100000000"),
        ("--shard", "0/0", "--shard must be I/N with 1 <= I <= N"),
        ("--shard", "", "--shard must be I/N with 1 <= I <= N, got ''"),
        ("--where", "", "a condition must hold at least one comparison"),
        ("--where", "nonsense", "a comparison must be KEY=VALUE"),
        ("--fail-on", "typo", "'--fail-on' must list statuses"),
        ("--resume", "old.jsonl", "leave one of them out"),
    ],
)
def test_an_option_value_that_cannot_be_is_refused_before_any_work(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE)

    done = CliRunner().invoke(main, ["run", str(suite), "--out", str(tmp_path / "o.jsonl"), option, value])

    assert done.exit_code == 2, done.output
    assert words in done.output
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("asked", [None, "sustained"])
def test_a_run_like_an_older_file_is_measured_in_its_regime(tmp_path: Path, asked: str | None) -> None:
    old = read(rf.build(tmp_path / "o", [], head=rf.header(suite={"name": "x", "measure": {"regime": "sustained"}})))
    assert like_regime(old, asked) == "sustained"


def test_a_run_like_an_older_file_refuses_another_regime(tmp_path: Path) -> None:
    old = read(rf.build(tmp_path / "o", [], head=rf.header(suite={"name": "x", "measure": {"regime": "sustained"}})))
    with pytest.raises(UsageError, match="in regime 'sustained', got --regime burst; leave one of them out"):
        like_regime(old, "burst")


def test_rows_that_the_older_file_lacks_are_counted_in_the_plan(tmp_path: Path) -> None:
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE.replace("N: 64", "N: [64, 32]"))
    old = rf.build(tmp_path / "o.jsonl", [rf.row(Case(batch=1, heads=2, Nq=64, Nk=64, d=16, dtype="fp32"), "naive")])

    done = CliRunner().invoke(main, ["run", str(suite), "--device", "cpu", "--like", str(old), "--dry-run"])

    assert done.exit_code == 0, done.output
    assert "1 row was not timed in" in done.output
    assert "K and n are chosen anew" in done.output
