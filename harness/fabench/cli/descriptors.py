"""Descriptors 0 to 2 that a caller has closed (`fabench run ... >&- 2>&-`)."""

from __future__ import annotations

import os
import sys


def fill() -> None:
    """Open what is closed of stdin, stdout and stderr on /dev/null.

    Else the next pipe or result file takes the number, and a child or a print would write into it. Python has made None
    of the streams that were closed when it started.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, mode, encoding="utf-8"))  # noqa: SIM115  # for the life of the process
