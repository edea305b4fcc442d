"""Is a CPU too busy to be measured on? Threads that share cores wait for one another at every barrier. No torch."""

from __future__ import annotations

from fabench.probe import Probe
from fabench.records import Env, Identity, Session
from fabench.text import counted


def warning(probe: Probe) -> str | None:
    """A sentence if other processes already keep every core of this run's CPU at work, None if not, or on a GPU.

    Seen with two OpenMP threads on two busy cores: calls of microseconds took a hundred times as long.
    """
    if (how := _how(probe.identity, probe.session)) is None:
        return None
    threads = probe.identity.threads or 1
    remedy = "wait until it is idle" + (f", or set OMP_NUM_THREADS below {threads}" if threads > 1 else "")
    return f"Warning: the machine is busy ({how}), so that times may come out many times too long; {remedy}"


def afterwards(env: Env) -> str | None:
    """The same of a run that is over, as a sentence about its times."""
    how = _how(env.identity, env.session)
    return how and f"the machine was busy when the run began ({how}): its times may be many times too long"


def _how(identity: Identity, session: Session) -> str | None:
    cores = len(session.affinity or ())
    if identity.device_type != "cpu" or not cores or session.load_1min is None or session.load_1min < cores:
        return None
    return (
        f"load {session.load_1min:.1f} over the last minute on {counted(cores, 'core')}, "
        f"and {counted(identity.threads or 1, 'thread')} to measure with"
    )
