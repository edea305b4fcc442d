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
    """Within the block each of `SIGNALS` raises KeyboardInterrupt, with its name for `by`.

    One that is ignored (nohup, `&`) stays ignored.
    """
    first: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first < GRACE_S:
            return
        first = time.monotonic()
        raise KeyboardInterrupt(signal.Signals(number).name)

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    taken = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}
    try:
        for number in taken:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def by(error: KeyboardInterrupt) -> str:
    """' by SIGTERM', so that who pressed no Ctrl-C knows what to look for; nothing for Ctrl-C itself."""
    name = error.args[0] if error.args else ""
    return f" by {name}" if name in {number.name for number in SIGNALS if number != signal.SIGINT} else ""
