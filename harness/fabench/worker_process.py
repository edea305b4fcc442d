"""The supervisor's handle on one worker process: start it, talk to it, know why it died. No torch here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from fabench.interpreter import Interpreter
from fabench.protocol import Board, Lines, encode


class WorkerDiedError(Exception):
    """The worker is gone. `status` is its row's: 'oom' if the kernel killed it for memory, else 'crashed'."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class WorkerProcess:
    """One `python -m fabench.worker` in its own process group, so that ending it ends what it started too."""

    def __init__(self, interpreter: Interpreter | None = None) -> None:
        interpreter = interpreter or Interpreter()
        self.board = Board.create()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        command_read, self._command = os.pipe()
        self._events, events_write = os.pipe()
        self._lines, self._queue = Lines(), list[dict[str, Any]]()
        self._oom_kills = oom_kills()
        self._heard_at = 0
        fds = (command_read, events_write, self.board.fd)
        self.process = subprocess.Popen(
            interpreter.command("fabench.worker", *map(str, fds), str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=fds,
            start_new_session=True,
            env=interpreter.environment(),
        )
        os.close(command_read)
        os.close(events_write)
        self.started = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        """Send one command. Raises WorkerDiedError if the worker is gone."""
        try:
            data = encode(message)
            while data:
                data = data[os.write(self._command, data) :]
        except BrokenPipeError:
            raise self._death() from None

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """The next event, None if none came in `timeout` seconds. Raises WorkerDiedError at the end of the stream."""
        if not self._queue and select.select([self._events], [], [], timeout)[0]:
            data = os.read(self._events, 1 << 20)
            if not data:
                raise self._death()
            self._queue.extend(self._lines.feed(data))
            self._heard_at = self._log.seek(0, os.SEEK_END)
        return self._queue.pop(0) if self._queue else None

    def _death(self) -> WorkerDiedError:
        code = self._reap()
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return WorkerDiedError("oom", "the kernel killed the worker: out of host memory")
        if code < 0:
            with contextlib.suppress(ValueError):
                return WorkerDiedError(
                    "crashed", f"the worker died of {signal.Signals(-code).name}{self.output_tail()}"
                )
        return WorkerDiedError("crashed", f"the worker exited with code {code}{self.output_tail()}")

    def _reap(self) -> int:
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed the pipe but lives on
            self.kill()
            return self.process.wait()

    def output_tail(self, size: int = 400) -> str:
        """The end of what the worker has printed since its last event, as ': text', or nothing."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._heard_at, end - size))
        text = " ".join(self._log.read().decode(errors="replace").split())
        return f": {text}" if text else ""

    def kill(self) -> None:
        """End the worker and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Ask it to end, then make sure of it, and release everything."""
        with contextlib.suppress(OSError):
            os.close(self._command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        self.kill()
        os.close(self._events)
        self._log.close()
        self.board.close()


def oom_kills() -> int:
    """Processes of this cgroup the kernel has killed for memory (cgroup v2 memory.events, v1 memory.oom_control)."""
    places = [Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")]
    with contextlib.suppress(OSError):
        own = [line[3:].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"]
        places = [Path("/sys/fs/cgroup", path, "memory.events") for path in own] + places
    for place in places:
        with contextlib.suppress(OSError, ValueError):
            fields = dict(line.split() for line in place.read_text().splitlines())
            return int(fields.get("oom_kill", 0))
    return 0
