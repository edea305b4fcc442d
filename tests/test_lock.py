"""One run per GPU."""

from __future__ import annotations

import os
import subprocess
import sys

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
