"""What a child starts ends with it, and with a parent that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from fabench import kinship
from fabench.family import MARK, Family

STRAY = "setsid sleep 597.75 & sleep 597.75 & exec sleep 597.75"
"""Three of them, one in a session of its own."""
PARENT = f"""
import os, time
from fabench.family import Family
family = Family(["sh", "-c", {STRAY!r}], os.environ)
print(family._mark, flush=True)
time.sleep(600)
"""


def wait_for(mark: str, enough: Callable[[int], bool]) -> list[int]:
    """The members once there are enough of them, or as many as there are after ten seconds."""
    deadline = time.monotonic() + 10
    while not enough(len(found := list(kinship.members(mark)))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def three_or_more(count: int) -> bool:
    """A shell may still stand between them."""
    return count >= 3


def none(count: int) -> bool:
    return count == 0


def test_what_a_child_started_ends_with_it_wherever_it_went() -> None:
    family = Family(["sh", "-c", STRAY], os.environ)
    assert len(wait_for(family._mark, three_or_more)) >= 3

    family.kill()

    assert list(kinship.members(family._mark)) == []


def test_a_killed_parent_takes_all_that_its_child_started_with_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    mark = parent.stdout.readline().strip()
    assert len(wait_for(mark, three_or_more)) >= 3

    parent.kill()
    parent.communicate()

    assert wait_for(mark, none) == []


def test_a_command_that_cannot_be_started_leaves_no_watch_behind() -> None:
    before = set(children())

    with pytest.raises(FileNotFoundError):
        Family(["/no/such/program"], os.environ)

    assert set(children()) <= before


def test_a_family_is_known_by_its_own_mark_alone() -> None:
    child = subprocess.Popen(["sleep", "30"], env={**os.environ, MARK: "one"})
    try:
        assert wait_for(f"{MARK}=one", bool) == [child.pid]
        assert list(kinship.members(f"{MARK}=on")) == []
    finally:
        child.kill()
        child.wait()


def children() -> list[int]:
    """The pids of this process's children."""
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        return list(map(int, stream.read().split()))
