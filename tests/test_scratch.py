"""A run's temporary folder is removed with it, and the one of a killed run by the next run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fabench.scratch import PREFIX, YOUNG_S, scratch, sweep

HOLD = "from fabench.scratch import scratch\nwith scratch() as name: print(name, flush=True); input()"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    then = folder.stat().st_mtime - YOUNG_S - 1
    os.utime(folder, (then, then))


def test_the_folder_goes_with_the_block(temporary: Path) -> None:
    with scratch() as name:
        Path(name, "reference.pt").write_text("x")
        assert Path(name).parent == temporary

    assert not list(temporary.iterdir())


def test_the_folder_of_a_killed_run_is_swept_and_that_of_a_living_one_is_not(temporary: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=environment, text=True) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        (folder / "reference.pt").write_text("x")
        age(folder)

        sweep()
        living = folder.exists()
        run.kill()
    sweep()

    assert living
    assert not folder.exists()


def test_a_folder_that_was_just_made_and_one_of_another_name_are_left_alone(temporary: Path) -> None:
    young, other = temporary / f"{PREFIX}young", temporary / "fabench-other"
    young.mkdir()
    other.mkdir()
    age(other)

    sweep()

    assert young.exists()
    assert other.exists()
