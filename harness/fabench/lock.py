"""One run per GPU: a lock file in the temporary folder, held by the operating system for the life of the process."""

from __future__ import annotations

import contextlib
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
    fd = _open(path)
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
        with contextlib.suppress(OSError):  # another user's file: held all the same, without our name in it
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """The lock file, made if it is not there. Another user's may be read only, which is enough to lock it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(
                f"'{path}' must be a lock file that can be opened, got: {error.strerror}; set TMPDIR to another folder"
            ) from None


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
