"""A child process and all that it starts: they end together, and with this process. No torch here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fabench import kinship

MARK = "FABENCH_FAMILY"
"""Environment variable that every member inherits, also one that left the process group or lost its parent."""
PR_SET_PDEATHSIG = 1


class Family:
    """A child in a session of its own, marked so that whatever it starts can be found after it has gone.

    Beside it runs a watch: if this process is killed, so that nothing here can end the family, the watch does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> None:
        name, value = MARK, uuid.uuid4().hex
        self._mark = f"{name}={value}"
        self._watch = subprocess.Popen(
            [sys.executable, "-I", "-S", kinship.__file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.process = subprocess.Popen(
                command, start_new_session=True, env={**environment, name: value}, **options
            )
        except BaseException:
            self._dismiss()
            raise

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        kinship.end(self._mark)
        self._dismiss()

    def _dismiss(self) -> None:
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        self._watch.wait()


def end_with(parent: int) -> None:
    """Called by a child: be killed as soon as the process `parent`, which started it, is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the line above
        os._exit(0)
