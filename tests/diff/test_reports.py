"""Every form of the report: the table, Markdown, JSON, CSV, JUnit, GitHub annotations, --explain, --rerun, a pivot."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest

import resultfiles as rf
from diff_files import BACKENDS, CASES, diff, failing, rounds, table, without_paths, write
from fabench.case import row_id
from fabench.diff.thresholds import Thresholds
from golden_files import assert_golden

SLOW = (CASES[5], "triton-flash")
FAST = (CASES[2], "online")


@pytest.fixture
def mixed(tmp_path):
    """One of everything that two files of one session can show."""
    old = [
        *table(1),
        *failing(CASES[0], "naive", "oom", message="tried to allocate 64 GiB"),
        *failing(CASES[1], "naive", "unsupported", message="head dim 128 > 64"),
        *rounds(CASES[2], "naive"),
        *rounds(CASES[3], "naive"),
        *rounds(CASES[4], "naive"),
        *rounds(CASES[5], "naive", noise=0.04),
    ]
    new = [
        *table(2, factors={SLOW: 1.06, FAST: 0.93}),
        *rounds(CASES[0], "naive"),
        *failing(CASES[1], "naive", "unsupported", message="head dim 128 > 64"),
        *failing(CASES[2], "naive", "wrong_result", message="dQ: max rho 37 > 4 at [0, 3, 17, 5]"),
        *failing(CASES[3], "naive", "unavailable", message="no module named 'naive'"),
        *rounds(CASES[5], "naive", noise=0.04, seed=9),
        *rounds(CASES[6], "naive"),
    ]
    changed = {"python": "3.12.3", "torch": "2.12.0", "cuda": "13.0", "driver": "580.95"}
    return write(tmp_path / "old.jsonl", old), write(tmp_path / "new.jsonl", new, software=changed)


def outputs(tmp_path, files, *more):
    """The command with every file it can write, and those files' text."""
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "markdown", "junit", "csv", "rerun")}
    result = diff(*files, *[part for name, path in paths.items() for part in (f"--{name}", path)], *more)
    return SimpleNamespace(result=result, **{name: path.read_text() for name, path in paths.items()})


def test_the_table(tmp_path, mixed):
    result = diff(*mixed)
    assert result.exit_code == 1
    assert_golden("diff_table.txt", without_paths(result.output, tmp_path))


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_keeps_the_verdict_beside_its_row(tmp_path, mixed, width, monkeypatch):
    from fabench import diff as comparison
    from fabench.views.diff_table import text

    monkeypatch.chdir(tmp_path)
    sides = [comparison.load(path.name) for path in mixed]
    output = text(comparison.judge(*sides, comparison.Options()), width=width)
    assert max(map(len, output.splitlines())) <= width
    first = output.split("\n\n")[2].splitlines()
    assert first[0].split()[:5] == ["causal", "N", "backend", "verdict", "new/old"]
    assert first[2].split()[:4] == ["no", "2048", "naive", "BROKEN"]
    if width == 60:
        assert_golden("diff_narrow.txt", output + "\n")


def test_rows_skipped_in_both_files_are_told_by_reason_and_not_by_row(tmp_path):
    def skipped(backend, reasons):
        return [r for n, why in enumerate(reasons) for r in failing(CASES[n], backend, "unsupported", message=why)]

    more = [
        *skipped("cuda-v1", ["needs a GPU"] * 3),
        *skipped("cuda-v2", ["needs a GPU"] * 2),
        *[row for n in range(12) for row in failing(rf.case(256 + n), "naive", "predicted_oom", message=f"{n} GB")],
    ]
    files = [write(tmp_path / f"{seed}", [*table(seed), *more]) for seed in (1, 2)]
    output = diff(*files).output
    assert "SKIPPED: cuda-v1, cuda-v2, 5 rows: needs a GPU\n" in output
    assert len(re.findall(r"(?m)^SKIPPED: naive, 1 row: \d+ GB$", output)) == 7
    assert "SKIPPED: 5 rows for 5 more reasons: see --all\n" in output
    assert not [line for line in output.splitlines() if line.split()[-2:-1] == ["SKIPPED"]]
    assert "17 SKIPPED" in output.splitlines()[-1]
    assert len([line for line in diff(*files, "--all").output.splitlines() if "  SKIPPED" in line]) == 17


def test_the_whole_table(tmp_path, mixed):
    assert_golden("diff_all.txt", without_paths(diff(*mixed, "--all").output, tmp_path))


def test_the_markdown(tmp_path, mixed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_golden("diff_markdown.md", outputs(tmp_path, [path.name for path in mixed]).markdown)


def test_the_csv(tmp_path, mixed):
    text = outputs(tmp_path, mixed).csv
    assert_golden("diff_csv.csv", text)
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 31
    assert {line["gates"] for line in lines} == {"true", "false"}
    regressed = next(line for line in lines if line["verdict"] == "REGRESSED")
    assert float(regressed["adjusted_slow"]) < 0.05 < float(regressed["adjusted_fast"])
    assert float(regressed["d"]) > float(regressed["threshold"]) > 0.0099
    assert {line["se"] for line in lines if line["verdict"] == "BROKEN"} == {""}


def test_the_junit(tmp_path, mixed):
    text = outputs(tmp_path, mixed).junit
    assert_golden("diff_junit.xml", text)
    root = ET.fromstring(text)
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "31", "4")
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["naive", *sorted(BACKENDS)]
    assert sum(int(suite.get("tests")) for suite in suites) == 31
    failures = {case.find("failure").get("type") for case in root.iter("testcase") if case.find("failure") is not None}
    assert failures == {"BROKEN", "COVERAGE_LOST", "MISSING", "REGRESSED"}


def test_the_json_holds_every_number_threshold_and_version(tmp_path, mixed):
    data = json.loads(outputs(tmp_path, mixed).json, parse_constant=lambda token: pytest.fail(token))
    assert data["schema"] == "fabench-diff/1.0"
    assert data["thresholds"] == {**Thresholds().as_dict()}
    assert data["exit_code"] == 1
    assert sum(data["summary"].values()) == len(data["rows"]) == 31
    assert set(data["meaning"]) == set(data["summary"])
    regressed = next(row for row in data["rows"] if row["verdict"] == "REGRESSED")
    assert (regressed["backend"], regressed["gates"], regressed["old_rounds"]) == (SLOW[1], True, 10)
    assert regressed["ratio"] == pytest.approx(1.06, rel=0.005)
    assert regressed["ratio_low"] < regressed["ratio"] < regressed["ratio_high"]
    evidence = regressed["evidence"]
    for name in ("d", "s2", "s2_nu", "variance", "se", "nu", "threshold", "p_slow", "adjusted_slow", "guard_slow"):
        assert isinstance(evidence[name], float), name
    assert evidence["margin_kind"] == "interleaved"
    assert data["old"]["envs"][0]["software"]["torch"] == "2.11.0"
    broken = next(row for row in data["rows"] if row["verdict"] == "BROKEN")
    assert (broken["new_ns"], broken["ratio"], broken["evidence"]) == (None, None, None)


def test_the_annotations_and_the_steps_summary(tmp_path, mixed, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    output = diff(*mixed, "--annotations").output
    commands = [line for line in output.splitlines() if line.startswith("::")]
    assert_golden("diff_annotations.txt", "\n".join(commands) + "\n")
    text = summary.read_text()
    assert text.startswith("## fabench diff\n\n**failed")
    assert "REGRESSED |" in text


def test_annotations_outside_a_github_step_write_no_file(tmp_path, mixed, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert "::notice" in diff(*mixed, "--annotations").output


def test_many_annotations_are_cut_to_what_github_shows(tmp_path):
    files = write(tmp_path / "o", table(1)), write(tmp_path / "n", table(2, factor=1.2))
    lines = [line for line in diff(*files, "--annotations").output.splitlines() if line.startswith("::error")]
    assert len(lines) == 10
    assert lines[-1] == "::error title=fabench diff::15 more rows, see the table"


def test_what_a_kernel_prints_cannot_break_a_report(tmp_path):
    """Escapes: workflow commands, XML, Markdown and CSV in a message, a path and a backend's name."""
    nasty = 'bad\x00\x1b[31m ]]> <&"%0A|`\n::error::x, a:b'
    old = write(tmp_path / "o", [*table(1), *rounds(CASES[0], "a|b,<c>:%")])
    new = write(tmp_path / "n", [*table(2), *failing(CASES[0], "a|b,<c>:%", "error", message=nasty)])
    out = outputs(tmp_path, (old, new), "--annotations")
    assert out.result.exit_code == 1
    root = ET.fromstring(out.junit)
    assert {suite.get("name") for suite in root} >= {"a|b,<c>:%"}
    errors = [line for line in out.result.output.splitlines() if line.startswith("::error")]
    assert len(errors) == 1
    assert errors[0].startswith("::error title=BROKEN a|b%2C<c>%3A%25::")
    assert len(list(csv.reader(io.StringIO(out.csv)))) == 26
    assert json.loads(out.json)["rows"][0]["reason"] == nasty
    row = next(line for line in out.markdown.splitlines() if "BROKEN" in line and line.startswith("|"))
    assert row.count("|") - row.count("\\|") == 9


def test_what_a_waiver_says_is_not_obeyed_by_markdown(tmp_path, mixed):
    waivers = tmp_path / "w.toml"
    waivers.write_text('[[waiver]]\nrow = "a*b*"\nbound = "9%"\nexpires = 2099-01-01\nreason = "<img src=x> _y_"\n')
    out = outputs(tmp_path, mixed, "--waivers", waivers)
    assert r"- waiver 'a\*b\*': regressed up to 9 % until 2099-01-01: \<img src=x\> \_y\_" in out.markdown
    assert "waiver 'a*b*'" in out.result.output


def test_explain_prints_every_number_of_a_regression(tmp_path, mixed):
    result = diff(*mixed, "--explain", row_id(*SLOW))
    assert result.exit_code == 1
    assert_golden("diff_explain.txt", without_paths(result.output, tmp_path))


def test_explain_tells_why_a_row_without_times_is_what_it_is(tmp_path, mixed):
    output = diff(*mixed, "--explain", row_id(CASES[2], "naive")).output
    assert "verdict BROKEN" in output
    assert "new: " in output
    assert "dQ: max rho 37 > 4" in output
    absent = diff(*mixed, "--explain", row_id(CASES[4], "naive")).output
    assert "new: absent" in absent


def test_explain_takes_the_beginning_of_an_id_and_refuses_what_is_not_one(tmp_path, mixed):
    assert "verdict REGRESSED" in diff(*mixed, "--explain", row_id(*SLOW)[:8]).output
    for wrong in ("zzzz", ""):
        refused = diff(*mixed, "--explain", wrong)
        assert refused.exit_code == 2
        assert "'--explain' must name one row" in refused.output


def test_rerun_lists_regressed_rows_and_those_past_half_the_threshold(tmp_path):
    near = (CASES[7], "sdpa-flash")
    old = table(1, noise=0.001, factors={}) + rounds(CASES[6], "naive", noise=0.02)
    new = table(2, noise=0.001, factors={SLOW: 1.06}) + rounds(CASES[6], "naive", noise=0.02, seed=5, factor=1.009)
    files = write(tmp_path / "o", old), write(tmp_path / "n", new)
    lines = outputs(tmp_path, files).rerun.splitlines()
    assert lines[0].startswith("#")
    named = [line.split()[0] for line in lines[1:]]
    assert named == [row_id(*SLOW), row_id(CASES[6], "naive")]
    assert row_id(*near) not in named
    assert "# REGRESSED triton-flash N=4096" in lines[1]


def test_a_pivot_shows_ratios_on_the_axes_asked_for(tmp_path, mixed):
    result = diff(*mixed, "--row", "N,causal", "--col", "backend")
    assert result.exit_code == 1
    assert_golden("diff_pivot.txt", without_paths(result.output, tmp_path))


def test_a_pivot_never_puts_two_rows_in_one_cell(tmp_path, mixed):
    output = diff(*mixed, "--row", "N", "--col", "backend").output
    assert output.splitlines()[3].split()[:2] == ["N", "causal"]


@pytest.mark.parametrize("axis", ["device", "file", "regime"])
def test_axes_that_a_comparison_does_not_have_are_refused(mixed, axis):
    result = diff(*mixed, "--row", axis)
    assert result.exit_code == 2
    assert f"'{axis}' is no axis of a comparison" in result.output


def test_an_axis_is_in_the_rows_or_in_the_columns(mixed):
    result = diff(*mixed, "--row", "N,causal", "--col", "N")
    assert result.exit_code == 2
    assert "'N' must be in --row or in --col, got it in both" in result.output


def test_where_narrows_everything(tmp_path, mixed):
    data = json.loads(outputs(tmp_path, mixed, "--where", "backend=naive").json)
    assert {row["backend"] for row in data["rows"]} == {"naive"}
    assert data["where"] == "backend=naive"
    assert data["tests"] == 1


def test_quiet_rows_are_cut_and_counted_unless_all_are_asked_for(tmp_path, mixed):
    short, long = diff(*mixed).output, diff(*mixed, "--all").output
    assert "2 more rows (SAME) are not shown: --all shows them" in short
    assert "not shown" not in long
    assert long.count("SAME\n") > short.count("SAME\n")


@pytest.mark.parametrize("option", ["--json", "--markdown", "--junit", "--csv", "--rerun"])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path, mixed, option):
    (tmp_path / "file").write_text("a file where the folder should be")
    for path in (tmp_path, tmp_path / "file" / "x"):
        result = diff(*mixed, option, path)
        assert result.exit_code == 2
        assert result.output.startswith("Error: ")
        assert "cannot be written" in result.output


def test_importing_the_command_imports_no_torch_and_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, fabench.cli.diff, fabench.cli.merge;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'numpy', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_comparing_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, fabench.diff, fabench.views.diff_table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_big_files_are_read_by_two_processes_with_one_result(tmp_path, mixed, monkeypatch):
    from fabench.diff import side

    alone = diff(*mixed, "--json", tmp_path / "a.json")
    monkeypatch.setattr(side, "PARALLEL_BYTES", 0)
    both = diff(*mixed, "--json", tmp_path / "b.json")
    assert alone.output == both.output
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert {**one, "generated": 0} == {**two, "generated": 0}


def test_a_reader_that_is_killed_is_done_without(mixed, monkeypatch):
    from fabench.diff import side

    alone = diff(*mixed)
    monkeypatch.setattr(side, "PARALLEL_BYTES", 0)
    monkeypatch.setattr("multiprocessing.spawn.get_preparation_data", lambda name: {"dir": "/no/such/folder"})
    both = diff(*mixed)

    assert (alone.exit_code, alone.output) == (both.exit_code, both.output)


@pytest.mark.parametrize("which", [0, 1])
def test_damage_is_told_the_same_way_by_a_process_of_its_own(tmp_path, mixed, monkeypatch, which):
    from fabench.diff import side

    rf.mutate(mixed[which], lambda lines: [*lines[:9], "{", *lines[9:]])
    alone = diff(*mixed)
    monkeypatch.setattr(side, "PARALLEL_BYTES", 0)
    both = diff(*mixed)
    assert alone.exit_code == both.exit_code == 2
    assert alone.output == both.output
    assert ".jsonl:10:" in both.output


def test_a_table_of_very_many_bad_rows_is_cut_and_says_so(tmp_path):
    cases = [rf.case(2048 + n) for n in range(220)]
    old = write(tmp_path / "old.jsonl", table(1, cases=cases, backends=["sdpa-flash"], count=6))
    new = write(tmp_path / "new.jsonl", table(2, cases=cases, backends=["sdpa-flash"], count=6, factor=1.2))
    output = diff(old, new).output
    assert "20 more rows (REGRESSED) are not shown: --all shows them" in output
    assert output.count("REGRESSED\n") == 200


def test_explain_prints_one_line_for_what_a_kernel_said_and_no_nan(tmp_path):
    old = write(tmp_path / "old", [*rounds(CASES[0], count=10), *rounds(CASES[1], count=1)])
    said = failing(CASES[0], "sdpa-flash", "crashed", message="boom\n::error::obeyed\n")
    new = write(tmp_path / "new", [*said, *rounds(CASES[1], count=1)])
    output = diff(old, new, "--explain", rf.row_id(CASES[0], "sdpa-flash")).output
    assert "crashed: boom ::error::obeyed" in output
    assert not any(line.startswith("::") for line in output.splitlines())
    once = diff(old, new, "--explain", rf.row_id(CASES[1], "sdpa-flash")).output
    assert "SE                  not known, 0.00 degrees of freedom" in once
    assert "nan" not in once


def test_no_line_of_a_report_begins_with_what_a_file_says(tmp_path):
    said = failing(CASES[0], "sdpa-flash", "crashed", message="boom\n::error::obeyed")
    old = write(tmp_path / "old", [*rounds(CASES[0]), *rounds(CASES[1])])
    new = write(tmp_path / "new", [*said, *rounds(CASES[1], seed=1)], header={"started": "now\n::error::obeyed"})
    rf.mutate(new, lambda lines: [{**lines[0], "schema": "fabench/1.9", "x\n::error::obeyed": 1}, *lines[1:]])
    for options in ((), ("--row", "N", "--col", "backend"), ("--explain", rf.row_id(CASES[0], "sdpa-flash"))):
        output = diff(old, new, *options).output
        assert "::error::obeyed" in output
        assert not any(line.startswith("::") for line in output.splitlines()), options


def test_a_pivot_says_what_is_waived(tmp_path):
    waivers = tmp_path / "w.toml"
    waivers.write_text('[[waiver]]\nrow = "*"\nbound = "9%"\nexpires = 2099-01-01\nreason = "known"\n')
    files = write(tmp_path / "o", table(1)), write(tmp_path / "n", table(2, factors={SLOW: 1.05}))
    output = diff(*files, "--row", "N", "--col", "backend", "--waivers", waivers).output
    assert "REGRESSED (waived) ¹" in output
    assert "¹ waived: known (until 2099-01-01)" in output


def test_a_condition_that_no_common_row_meets_is_told_apart_from_files_without_common_rows(mixed):
    refused = diff(*mixed, "--where", "N=7")
    assert refused.exit_code == 2
    assert re.search(r"--where 'N=7' must match a row of both files, got none of \d+ in both", refused.output)
