"""Streams that a caller has closed, or that cannot be written: the run goes on, its file and exit code are right."""

from __future__ import annotations

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
