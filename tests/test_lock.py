"""One run per GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fabench.errors import DeviceError
from fabench.lock import device_lock

HOLD = """
import sys
from fabench.lock import device_lock
with device_lock(sys.argv[1], wait=False, notify=print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def holder(name: str):
    child = subprocess.Popen([sys.executable, "-c", HOLD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.communicate()


def test_a_second_run_is_refused_and_told_who_holds_the_device(name: str, holder) -> None:
    with pytest.raises(DeviceError, match=f"in use by pid {holder.pid};"), device_lock(name, wait=False, notify=print):
        pass


def test_a_killed_run_leaves_no_lock_behind(name: str, holder) -> None:
    holder.kill()
    holder.wait()

    with device_lock(name, wait=False, notify=print):
        pass


def test_waiting_says_so_once_and_then_takes_its_turn(name: str, holder) -> None:
    told = []

    def notify(text: str) -> None:
        told.append(text)
        holder.kill()

    with device_lock(name, wait=True, notify=notify, poll_s=0.01):
        pass

    assert told == [f"waiting for pid {holder.pid} to release {name}"]


def test_a_lock_file_of_another_user_can_be_held_and_says_nothing_of_us(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(tempfile.gettempdir()) / f"fabench-{name}.lock"
    path.write_text("4711")
    opened = os.open

    def refusing(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    with (
        device_lock(name, wait=False, notify=print),
        pytest.raises(DeviceError, match="in use by pid 4711"),
        device_lock(name, wait=False, notify=print),
    ):
        pass

    path.unlink()


def test_a_lock_file_that_cannot_be_made_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    with pytest.raises(DeviceError, match="set TMPDIR"), device_lock(name, wait=False, notify=print):
        pass
