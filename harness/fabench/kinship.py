"""Processes that carry a mark in their environment: find them, end them. As a script: once its stdin closes.

Run as `python -I -S kinship.py MARK`, it outlives a parent that was killed with SIGKILL and ends what that parent's
children left behind. Standard library only, so that it starts in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

ROUNDS = 10
"""One that is forking is found in the next look."""


def members(mark: str) -> Iterator[int]:
    """The living processes with the variable `mark` ('NAME=value'). What is dead has no environment any more."""
    wanted = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if wanted in stream.read().split(b"\0"):
                    yield int(name)
        except OSError:  # gone meanwhile, or another user's
            continue


def end(mark: str) -> None:
    """End every process with `mark`, and what they fork meanwhile."""
    for _ in range(ROUNDS):
        left = list(members(mark))
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # ended by itself
                continue


if __name__ == "__main__":
    while os.read(0, 1):
        pass
    end(sys.argv[1])
