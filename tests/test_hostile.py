"""Backends that attack the process they run in: each is its own row's fault, and no other row's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = Path(__file__).parent / "planted" / "hostile_backends.py"
SUITE = """
name: tiny
axes: {N: 64, d: 16, dtype: fp32, batch: 1, heads: 2}
backends: [naive]
measure: {seconds: 0.01}
"""
OUTCOME_OF = {
    "fork_then_die": ("crashed", "the worker exited with code 5"),
    "fork_that_returns": ("ok", ""),
    "daemon": ("ok", ""),
    "closes_descriptors": ("crashed", "the worker exited with code 1"),
    "writes_descriptors": ("crashed", "something else was written to the worker's pipe: 'garbage'"),
    "unreadable": ("error", "(its message cannot be read)"),
    "not_utf8": ("error", r"bytes \udcff and \x1b[31m colours"),
    "interrupts": ("error", "KeyboardInterrupt"),
    "writes_inputs": ("wrong_result", "a call must leave its inputs as they are, and wrote into v"),
    "sparse": ("wrong_result", "O must have layout torch.strided"),
    "no_lse": ("wrong_result", "LSE must be a plain torch.Tensor, got None"),
    "patches": ("ok", ""),
    "changes_settings": ("ok", ""),
    "alarms": ("ok", ""),
    "wants_gradients": ("ok", ""),
    "resizes_inputs": ("error", "query.dim: 1"),
    "changes_process": ("ok", ""),
    "sees_settings": ("ok", ""),
    "naive": ("ok", ""),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """One run of every hostile backend: its rows by backend."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "tiny.yaml").write_text(SUITE)
    command = [sys.executable, "-m", "fabench", "run", "tiny.yaml", "--device", "cpu", "--out", "out.jsonl"]
    command += ["--backend-file", str(HOSTILE), "--timeout", "30"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    records = map(json.loads, (folder / "out.jsonl").read_text().splitlines())
    return {record["backend"]: record for record in records if record["rec"] == "row"}


@pytest.mark.parametrize("backend", OUTCOME_OF)
def test_what_a_backend_does_to_its_process_is_its_own_rows_outcome(rows, backend: str) -> None:
    status, words = OUTCOME_OF[backend]

    assert rows[backend]["status"] == status, rows[backend].get("detail")
    assert words in (rows[backend].get("detail") or {"message": ""})["message"]


def test_rows_that_went_one_by_one_after_a_death_say_so(rows) -> None:
    assert "not_interleaved" in rows["naive"]["flags"]


def test_a_process_that_left_its_workers_session_is_ended_too(rows) -> None:
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]

    assert b"sleep\x00598.25\x00" not in commands
