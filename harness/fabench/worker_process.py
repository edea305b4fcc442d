"""The supervisor's handle on one worker process: start it, talk to it, know why it died. No torch here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import Any

from fabench.cgroup import oom_kills
from fabench.family import Family
from fabench.interpreter import Interpreter
from fabench.protocol import Board, Lines, encode

LOG_BYTES = 64 << 20
"""What a worker may have printed before it is forgotten: nobody reads it but for its end."""


class WorkerDiedError(Exception):
    """The worker is gone. `status` is its row's: 'oom' if the kernel killed it for memory, else 'crashed'."""

    def __init__(self, status: str, message: str, traceback: str | None = None) -> None:
        super().__init__(message)
        self.status, self.traceback = status, traceback


class WorkerProcess:
    """One `python -m fabench.worker` with all that it starts."""

    def __init__(self, interpreter: Interpreter | None = None) -> None:
        interpreter = interpreter or Interpreter()
        self.board = Board.create()
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # lives as long as the worker
        command_read, self._command = os.pipe()
        self._events, events_write = os.pipe()
        self._lines, self._queue = Lines(), list[dict[str, Any]]()
        self._oom_kills = oom_kills()
        self._heard_at = 0
        fds = (command_read, events_write, self.board.fd)
        self._family = Family(
            interpreter.command("fabench.worker", *map(str, fds), str(os.getpid())),
            interpreter.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=fds,
        )
        self.process = self._family.process
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
        """The next event, None if none came in `timeout` seconds. Raises WorkerDiedError once the worker is gone."""
        if self._log.seek(0, os.SEEK_END) > LOG_BYTES:
            self._heard_at = self._log.truncate(0)
        if not self._queue:
            gone = self.process.poll() is not None  # asked before reading: what it said last is still read
            if select.select([self._events], [], [], 0 if gone else timeout)[0]:
                self._read()
            elif gone:  # something that it forked keeps the pipe open
                raise self._death()
        return self._queue.pop(0) if self._queue else None

    def _read(self) -> None:
        data = os.read(self._events, 1 << 20)
        if not data:
            raise self._death()
        try:
            self._queue.extend(self._lines.feed(data))
        except ValueError as error:
            raise WorkerDiedError("crashed", f"something else was written to the worker's pipe: {error}") from None
        self._heard_at = self._log.seek(0, os.SEEK_END)

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
        self._family.kill()

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
