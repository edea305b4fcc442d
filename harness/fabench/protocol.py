"""What the supervisor and a worker say to one another: JSON lines over two pipes, and a board for the watchdog.

The board is a page of shared memory. A worker writes there which row is at work, in which phase, before every launch:
too often for a pipe, and it must be readable after the worker has died.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

IDLE = 0
"""Board row: nobody's calls are running (idle windows, bookkeeping)."""
REFERENCE = 1
"""Board row: the reference is being computed."""
FIRST_ROW = 2
"""Board row of the case's first backend; the others follow."""

PREPARE, CHECK, TIME, DESCRIBE = 0, 1, 2, 3
"""Board phases. Checking and timing share the row's own limit; the others are the harness's or a compiler's time."""

PHASE_NAMES = {PREPARE: "preparing", CHECK: "checking", TIME: "timing", DESCRIBE: "profiling"}


class Board:
    """Who is at work, in shared memory: written by the worker, read by the supervisor."""

    SIZE = mmap.PAGESIZE

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, self.SIZE)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls) -> Board:
        """A new board whose `fd` a child may inherit."""
        fd = os.memfd_create("fabench-board")
        os.ftruncate(fd, cls.SIZE)
        return cls(fd)

    def enter(self, row: int, phase: int) -> None:
        """Say that the calls of board row `row` run from now on."""
        self._words[1] = phase
        self._words[0] = row

    def leave(self) -> None:
        """Say that nobody's calls run."""
        self._words[0] = IDLE

    @property
    def row(self) -> int:
        """Board row at work now, or when the worker died."""
        return self._words[0]

    @property
    def phase(self) -> int:
        """Phase of the row at work."""
        return self._words[1]

    def detach(self) -> None:
        """In a process forked from a worker: what it does is written where nobody reads."""
        self._words = memoryview(bytearray(self.SIZE)).cast("Q")

    def close(self) -> None:
        """Release the page and its descriptor."""
        self._words.release()
        self._map.close()
        os.close(self.fd)


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # not `dumps`, which a backend may replace


def encode(message: dict[str, Any]) -> bytes:
    """One message as a line."""
    return _encode(message).encode() + b"\n"


class Lines:
    """Splits what arrives on a pipe into messages; a torn last line of a dead peer is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages completed by `data`. Raises ValueError at a line that is none: somebody else wrote it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:  # UnicodeDecodeError is one
                message = None
            if not (isinstance(message, dict) and ("ev" in message or "cmd" in message)):
                raise ValueError(repr(line[:60])[1:])
            yield message
