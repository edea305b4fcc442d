"""A run's folder among the temporary ones: what its workers share. It goes with the run, also with a killed one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "fabench-run-"
YOUNG_S = 60.0
"""A folder that was made a moment ago may not be locked yet."""


@contextmanager
def scratch() -> Iterator[str]:
    """A folder of its own for the block, after those that killed runs have left behind were removed.

    They may hold gigabytes of reference outputs, perhaps in memory. The operating system lets go of a run's lock on its
    folder when the run ends, however it ends.
    """
    sweep()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(fd)
            yield name
        finally:
            os.close(fd)


def sweep() -> None:
    """Remove the folders whose runs are gone, as far as they are ours to remove."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < YOUNG_S or folder.is_symlink():
                continue
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                if _lock(fd):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by a run, or a file system without locks: then nothing is swept
        return False
    return True
