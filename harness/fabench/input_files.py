"""Files that a command reads, opened in one place, so that none of them can make it wait or read for ever."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Sequence
from typing import BinaryIO

from fabench.errors import UsageError

MOST_BYTES = 256 * 2**20
"""More than a list of rows, waivers or a calibration holds; what is larger is another kind of file."""
WRITER_S = 5.0
"""How long a pipe with a name is given for somebody to write to it."""


def kind(path: str | os.PathLike[str]) -> str:
    """What there is, in a word or two: 'file', 'folder', 'pipe', 'device', 'socket'. Raises OSError for nothing."""
    mode = os.stat(path).st_mode
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def given_once(files: Sequence[str]) -> None:
    """Raises UsageError if a file is named twice: all that it holds would be shown, and counted, two times."""
    seen: dict[str, str] = {}
    for name in files:
        place = os.path.realpath(name)
        if place in seen:
            also = "" if seen[place] == name else f", as '{seen[place]}' too"
            raise UsageError(f"'{name}' must be given once, and is given twice{also}; leave one of them out")
        seen[place] = name


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file, or a pipe that somebody writes to, to be read once from its start to its end.

    /dev/stdin and a shell's <(command) are pipes without a name: they have had a writer, and are waited for as long as
    it takes. Opening one with a name (mkfifo) waits until somebody else opens it to write, which may be never; so it is
    opened without waiting, and refused unless something is written to it, or a writer leaves it, within `WRITER_S`. A
    device may have no end, and is refused unopened. Raises OSError, its strerror saying so.
    """
    name = os.fspath(path)
    if (found := kind(path)) in ("device", "socket"):
        raise OSError(errno.EINVAL, f"it must be a file or a pipe, got a {found}; give a file that holds it", name)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if found == "pipe" and os.path.exists(os.path.realpath(path)) and not _written(fd):
            raise OSError(
                errno.EINVAL,
                f"it must be a file, or a pipe that is written to, got one to which nothing was written in "
                f"{WRITER_S:g} s; give a file, or <(command)",
                name,
            )
        os.set_blocking(fd, True)
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def _written(fd: int) -> bool:
    """True once there is something to read, or a writer has come and gone."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(WRITER_S * 1000))


def read_small(path: str | os.PathLike[str]) -> bytes:
    """The file's bytes. Raises OSError if it cannot be read or is larger than `MOST_BYTES`."""
    with open_input(path) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MOST_BYTES // 2**20} MiB, which no such file is", os.fspath(path))
    return data
