"""One run per GPU: a lock file in the temporary folder, held by the operating system for the life of the process."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fabench.errors import DeviceError


@contextmanager
def device_lock(name: str, *, wait: bool, notify: Callable[[str], None], poll_s: float = 1.0) -> Iterator[None]:
    """Hold the lock called `name` while the block runs.

    Raises DeviceError naming the pid that holds it, unless `wait`: then `notify` is told once, and it waits its turn.
    The lock goes with the process, so a killed run leaves none behind.
    """
    path = Path(tempfile.gettempdir()) / f"fabench-{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        told = False
        while not _try(fd):
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            if not wait:
                raise DeviceError(f"'{name}' is in use by pid {holder}; wait for it with --wait, or end that run")
            if not told:
                notify(f"waiting for pid {holder} to release {name}")
                told = True
            time.sleep(poll_s)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
