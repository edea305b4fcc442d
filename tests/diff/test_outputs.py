"""Where a report goes: no input is written over, a full disk is told, a closed pipe changes no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from diff_files import CASES, diff, table, write
from fabench.cli import main

TARGETS = ("--json", "--markdown", "--junit", "--csv", "--rerun")
SMALL = {"cases": CASES[:1], "backends": ["sdpa-flash"]}


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "old.jsonl", table(1, **SMALL)), write(tmp_path / "new.jsonl", table(2, **SMALL))


def command(files, stdout) -> subprocess.CompletedProcess:
    """`fabench diff` in a process of its own, whose stdout is what is on trial."""
    return subprocess.run(
        [sys.executable, "-m", "fabench", "diff", *files], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize("option", TARGETS)
def test_an_input_is_never_written_over(tmp_path, files, option):
    waivers = tmp_path / "w.toml"
    waivers.write_text("")
    link = tmp_path / "link.jsonl"
    link.symlink_to(files[1])
    for target in (*files, waivers, link):
        before = target.read_bytes()
        result = diff(*files, "--waivers", waivers, option, target)
        assert result.exit_code == 2
        assert f"'{target}' is read by this command and must not be written too" in result.output
        assert target.read_bytes() == before


def test_two_options_that_name_one_file_are_refused(tmp_path, files):
    result = diff(*files, "--json", tmp_path / "x", "--csv", tmp_path / "x")
    assert result.exit_code == 2
    assert "must be written once, and two options name it" in result.output
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("option", TARGETS)
def test_a_full_disk_is_told_before_any_verdict_is_printed(files, option):
    result = diff(*files, option, "/dev/full")
    assert result.exit_code == 2
    assert result.output == "Error: '/dev/full' cannot be written: No space left on device\n"


def test_a_full_stdout_is_told_in_one_sentence(files):
    with open("/dev/full", "w") as full:
        done = command(files, full)
    assert done.returncode == 2
    assert done.stderr == "Error: stdout cannot be written: No space left on device\n"


def test_any_command_tells_a_full_stdout_in_one_sentence(files):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fabench", "show", files[0]],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "Error: stdout cannot be written: No space left on device\n"


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path, files, factor, code):
    new = write(tmp_path / "n", table(2, **SMALL, factor=factor))
    read, out = os.pipe()
    os.close(read)
    with os.fdopen(out, "w") as closed:
        done = command((files[0], new), closed)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_pipe_is_compared_and_not_explained(tmp_path, files):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        return subprocess.Popen(["cp", files[1], pipe], stderr=subprocess.DEVNULL)

    feeder = feed()
    assert diff(files[0], pipe).exit_code == 0
    assert feeder.wait(10) == 0
    refused = diff(files[0], pipe, "--explain", "a")  # would wait for ever: nobody writes it a second time
    assert refused.exit_code == 2
    assert f"'{pipe}' must be a regular file, because it is read twice" in refused.output


@pytest.mark.parametrize("words", ["", ",", " , ", "none,broken", "broken,none"])
def test_a_gate_on_nothing_must_be_asked_for_in_so_many_words(files, words):
    """`--fail-on "$UNSET"` must not let everything pass."""
    result = diff(*files, "--fail-on", words)
    assert result.exit_code == 2
    assert "'--fail-on' must list verdicts, or be 'none' alone" in result.output
    run = CliRunner().invoke(main, ["run", "smoke", "--fail-on", words])
    assert run.exit_code == 2
    assert "'--fail-on' must list statuses, or be 'none' alone" in run.output


def test_a_steps_summary_that_cannot_be_written_is_told(files, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(Path("/dev/full")))
    result = diff(*files, "--annotations")
    assert result.exit_code == 2
    assert "No space left on device" in result.output
