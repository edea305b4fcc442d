"""How a run may be asked to end: Ctrl-C, SIGTERM and a terminal that closes all mean the same."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 5.0
"""A second signal within this time is the same impatient one: ending workers and files in order goes on."""


@contextmanager
def interrupts() -> Iterator[None]:
    """Within the block each of `SIGNALS` raises KeyboardInterrupt. One that is ignored (nohup, `&`) stays ignored."""
    first: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first < GRACE_S:
            return
        first = time.monotonic()
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}
    try:
        for number in taken:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
