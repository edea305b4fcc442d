"""The script that publishes a GPU's results: what it starts, how it stops, and what it says of a file."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import publish  # noqa: E402


def test_a_file_that_is_there_is_continued_and_another_is_begun(tmp_path: Path) -> None:
    out = tmp_path / "smoke.jsonl"
    rest = ["--device", "cuda", "--compile-ahead", "8"]
    assert publish.command("smoke", out, "cuda", 8)[3:] == ["run", "smoke", "--out", str(out), *rest]
    out.write_text("")
    assert publish.command("smoke", out, "cuda", 8)[3:] == ["run", "smoke", "--resume", str(out), *rest]


def test_a_run_gets_a_ctrl_c_at_the_deadline_and_what_it_printed_is_kept(tmp_path: Path) -> None:
    script = "import time\nprint('at work', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: exit(130)"
    began = time.monotonic()

    assert publish.run([sys.executable, "-c", script], 1.0, tmp_path / "log") == 130
    assert time.monotonic() - began < 10
    assert (tmp_path / "log").read_text() == "at work\n"


def test_a_run_that_ignores_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "GRACE_S", 0.5)
    script = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"

    assert publish.run([sys.executable, "-c", script], 1.0, tmp_path / "log") == -signal.SIGKILL


def test_the_progress_of_a_file_is_its_rows_of_those_planned_by_status() -> None:
    there, planned, statuses = publish.progress(ROOT / "results" / "cpu-amd-epyc" / "smoke.jsonl")

    assert there == planned == 96 == sum(statuses.values())
    assert publish.progress(ROOT / "results" / "nothing.jsonl") == (0, 0, {})


def test_the_file_of_a_run_whose_machine_went_away_has_its_progress_too(tmp_path: Path) -> None:
    whole = (ROOT / "results" / "cpu-amd-epyc" / "smoke.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "smoke.jsonl"
    cut.write_text("".join(whole[:-1]))

    assert publish.progress(cut)[:2] == (96, 96)
