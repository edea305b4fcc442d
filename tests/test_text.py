"""Words and units as messages show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.text import bytes_text, counted, did_you_mean, printable, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (102_300, "99.9 KiB"),
        (512 << 20, "512 MiB"),
        (1000 << 20, "0.98 GiB"),
        (149_000_000_000, "139 GiB"),
        (4096 << 40, "4.00 PiB"),
        (5000 << 60, "5000 EiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.2834, "283 ms"), (0.9996, "1.0 s"), (7.04, "7.0 s"), (99.96, "1.7 min"), (7200, "2.0 h")],
)
def test_seconds_have_the_unit_that_suits_them(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ["row"], "0 rows"),
        (1, ["row"], "1 row"),
        (2, ["row"], "2 rows"),
        (1, ["record follows", "records follow"], "1 record follows"),
        (2, ["record follows", "records follow"], "2 records follow"),
    ],
)
def test_one_is_counted_in_the_singular(count, words, text):
    assert counted(count, *words) == text


ONE_OF_MANY = re.compile(
    r"(?<![\w.,:/-])1 (?:more )?(?:rows|rounds|cases|files|checks|failures|sessions|cards|records|samples|backends)\b"
)


@pytest.mark.parametrize(
    "command",
    [
        "validate {}",
        "show {}",
        "show {cut} --allow-partial",
        "show {cut}",
        "diff {} {other}",
        "diff {} {other} --all",
        "diff {} {other} --explain {row_id}",
        "diff {} {elsewhere}",
        "merge {} {other} --renumber --out {out}",
        "run smoke --device cpu --backend naive --where N=128,d=64,causal=true,direction=forward,dtype=fp32 --dry-run",
        "run smoke --device cpu --backend naive --where d=63",
    ],
)
def test_no_command_says_1_rows(command, tmp_path):
    row = make.row(make.case())
    one = make.build(tmp_path / "one", [row])
    cut = tmp_path / "cut"
    cut.write_text("".join(one.read_text().splitlines(keepends=True)[:-1]))
    files = {
        "cut": cut,
        "other": make.build(tmp_path / "other", [make.row(make.case(), median_ns=2e6)]),
        "elsewhere": make.build(tmp_path / "elsewhere", [make.row(make.case(N=64))]),
        "out": tmp_path / "out",
        "row_id": row.row_id,
    }

    said = CliRunner().invoke(main, command.format(one, **files).split()).output

    assert said
    assert not ONE_OF_MANY.findall(said)


def test_no_guide_and_no_golden_file_says_1_rows():
    root = Path(__file__).parents[1]
    for path in [*root.glob("docs/*.md"), *root.glob("tests/golden/*"), root / "README.md"]:
        assert not ONE_OF_MANY.findall(path.read_text()), path


def test_the_nearest_word_is_offered_and_nothing_far_off():
    assert did_you_mean("dtpye", ["dtype", "direction"]) == "; did you mean 'dtype'?"
    assert did_you_mean("zzz", ["dtype", "direction"]) == ""


def test_what_a_terminal_would_obey_or_utf8_cannot_say_is_escaped() -> None:
    assert printable("rho ≤ 8\n\x1b[31m\x00\udcff") == "rho ≤ 8\n\\x1b[31m\\x00\\udcff"
