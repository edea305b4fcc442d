"""Is a CPU too busy to be measured on? Threads that share cores wait for one another at every barrier. No torch."""

from __future__ import annotations

from fabench.probe import Probe
from fabench.text import counted


def warning(probe: Probe) -> str | None:
    """A sentence if other processes already keep every core of this run's CPU at work, None if not, or on a GPU.

    Seen with two OpenMP threads on two busy cores: calls of microseconds took a hundred times as long.
    """
    session, threads = probe.session, probe.identity.threads or 1
    cores = len(session.affinity or ())
    if probe.device.type != "cpu" or not cores or session.load_1min is None or session.load_1min < cores:
        return None
    remedy = "wait until it is idle" + (f", or set OMP_NUM_THREADS below {threads}" if threads > 1 else "")
    return (
        f"Warning: the machine is busy (load {session.load_1min:.1f} over the last minute on {counted(cores, 'core')}, "
        f"and {counted(threads, 'thread')} to measure with), so that times may come out many times "
        f"too long; {remedy}"
    )
