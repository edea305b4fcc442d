"""Streams that a caller has closed, or that cannot be written or say every letter: files and exit codes are right."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = "name: tiny\naxes: {N: 16, d: 8, dtype: fp32, batch: 1, heads: 1}\nbackends: [naive]\nmeasure: {seconds: 0.01}"


def shell(arguments: str, redirections: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.quote(sys.executable)} -m fabench {arguments} {redirections}"
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-", ">/dev/null 2>/dev/full"])
def test_a_run_that_can_say_nothing_still_leaves_a_whole_file_and_its_exit_code(
    tmp_path: Path, redirections: str
) -> None:
    (tmp_path / "tiny.yaml").write_text(SUITE)

    done = shell("run tiny.yaml --device cpu --out out.jsonl", redirections, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "sound, complete: 1 row (1 ok)" in shell("validate out.jsonl", "", tmp_path).stdout


@pytest.mark.parametrize("redirections", ["<&- >&- 2>&-", "2>&-", ">&-"])
def test_an_error_that_nobody_can_read_has_its_exit_code(tmp_path: Path, redirections: str) -> None:
    assert shell("run no_such_suite", redirections, tmp_path).returncode == 2


PUBLISHED = Path(__file__).parents[1] / "results" / "published" / "fa2_a100.jsonl"
PRINTERS = {
    "show": f"show {PUBLISHED}",
    "explain": "explain --case N=128,d=64",
    "validate": f"validate {PUBLISHED}",
    "schema": "schema record",
    "suites": "list suites",
}


@pytest.mark.parametrize("arguments", PRINTERS.values(), ids=PRINTERS)
def test_a_command_whose_reader_has_gone_ends_with_its_own_exit_code(tmp_path: Path, arguments: str) -> None:
    """`fabench show FILE | head -1` under pipefail: what happens to the pipe is no failure of the command."""
    gone = "| (exec <&-; while ! test -s code; do sleep 0.05; done); exit $(cat code)"
    (tmp_path / "code").touch()
    command = f"({shlex.quote(sys.executable)} -m fabench {arguments}; echo $? > code) {gone}"

    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_letter_that_the_terminal_lacks_is_printed_as_an_escape(tmp_path: Path, encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fabench", "explain", "--case", "N=128,d=64"],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"- S = QK" in done.stdout
    if encoding == "latin-1":
        assert b"- S = QK\\u1d40" in done.stdout
