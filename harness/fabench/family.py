"""A child process and all that it starts: they end together, and the child ends with this process. No torch here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "FABENCH_FAMILY"
"""Environment variable that every member inherits, also one that left the process group or lost its parent."""
PR_SET_PDEATHSIG = 1


class Family:
    """A child in a session of its own, marked so that whatever it starts can be found after it has gone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> None:
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(command, start_new_session=True, env={**environment, name: value}, **options)

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for _ in range(10):  # one that is forking is found in the next look
            if not (left := list(self._members())):
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _members(self) -> Iterator[int]:
        """The living ones. What is dead has no environment any more."""
        mark = self._mark.encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    yield int(path.parent.name)


def end_with(parent: int) -> None:
    """Called by a child: be killed as soon as the process `parent`, which started it, is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the line above
        os._exit(0)
