"""Reading a file written for fabench that cannot be large: a list of rows, waivers, a calibration."""

from __future__ import annotations

import errno
import os

MOST_BYTES = 256 * 2**20
"""More than any such file holds; what is larger is another kind of file, or one without an end (/dev/zero)."""


def read_small(path: str | os.PathLike[str]) -> bytes:
    """The file's bytes. Raises OSError if it cannot be read or is larger than `MOST_BYTES`."""
    with open(path, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MOST_BYTES // 2**20} MiB, which no such file is", os.fspath(path))
    return data
