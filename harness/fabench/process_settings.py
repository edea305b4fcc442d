"""What a process keeps of Python and of the system that one backend can change under another. No torch here."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
HANDLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE,
)  # fmt: skip
"""Signals whose handlers are put back: one that a backend left behind would be run inside another's call."""


LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
HARMLESS = (resource.RLIMIT_CORE,)
"""Limits that no call of a backend meets, however low."""


def _is_set(timer: int) -> bool:
    return signal.getitimer(timer) != (0.0, 0.0)


def _clear(timer: int, _: bool) -> None:
    signal.setitimer(timer, 0)


def _handle(number: signal.Signals, handler: Any) -> None:
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def _limit(number: int, was: tuple[int, int]) -> None:
    """Both limits as they were; where the hard one may not be raised again, the soft one as high as it allows."""
    try:
        resource.setrlimit(number, was)
    except (ValueError, OSError):
        _, hard = resource.getrlimit(number)
        resource.setrlimit(number, (hard if _is_above(was[0], hard) else was[0], hard))


def _is_above(limit: int, other: int) -> bool:
    """Infinity, which may be -1, is above every number."""
    if resource.RLIM_INFINITY in (limit, other):
        return limit != other and limit == resource.RLIM_INFINITY
    return limit > other


def hard_limits() -> dict[int, int]:
    """The hard limits of this process that a backend may meet."""
    return {number: resource.getrlimit(number)[1] for number in LIMITS if number not in HARMLESS}


def lowered(before: dict[int, int], now: dict[int, int]) -> bool:
    """True if a hard limit is lower than before: whoever may not raise it has lost that for good."""
    return any(_is_above(before[number], limit) for number, limit in now.items())


def _filters() -> tuple[Any, ...]:
    return tuple(warnings.filters)


def _set_filters(filters: tuple[Any, ...]) -> None:
    warnings.resetwarnings()  # which also forgets what was shown under the old ones
    warnings.filters[:] = filters  # type: ignore[index]  # declared as a Sequence, documented as a list


def _cores() -> set[int]:
    return os.sched_getaffinity(0)


def _stay_on(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)


def _folder() -> str:
    """'' where the current folder has been removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _go(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)


PROCESS_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    *((partial(_is_set, timer), partial(_clear, timer)) for timer in TIMERS),  # before the handlers that they call
    *((partial(signal.getsignal, number), partial(_handle, number)) for number in HANDLED),
    *((partial(resource.getrlimit, limit), partial(_limit, limit)) for limit in LIMITS),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (gc.get_debug, gc.set_debug),
    (_cores, _stay_on),
    (_filters, _set_filters),
    (_folder, _go),
)
"""How each is read and set. A hard limit may not be raised again by everybody: `spoilers` has what follows.

The environment is left alone: libraries write into it what they need.
"""
