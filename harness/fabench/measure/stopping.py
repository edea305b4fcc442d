"""When a measurement ends: the precedence of the stopping rule, in one pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabench.names import StopReason
from fabench.stats import median_interval

CHECKPOINTS = (30, 60, 120, 240, 480)
"""Sample counts at which the interval and the sampled time are looked at."""
LONG_CHECKPOINTS = (5, 10, 20, *CHECKPOINTS)
"""The same for a call longer than 10 ms."""


@dataclass(frozen=True)
class Limits:
    """What ends a measurement, from the suite's `measure` section where it says so."""

    seconds: float = 0.5
    """Timed work (samples x K) after which a checkpoint stops whatever the interval is."""
    half_width: float = 0.0025
    """Half-width of the median's 95 % interval, as a share of the median, that is narrow enough."""
    wall_s: float = 20.0
    """Wall time of one row's sampling, idle windows included."""


def checkpoints(long_call: bool) -> tuple[int, ...]:
    """The sample counts at which a call of this kind may stop; the first is its n_min, the last its n_max."""
    return LONG_CHECKPOINTS if long_call else CHECKPOINTS


def next_checkpoint(n: int, long_call: bool) -> int:
    """The first checkpoint after `n` samples (the last one, if `n` is past it)."""
    points = checkpoints(long_call)
    return next((point for point in points if point > n), points[-1])


def relative_half_width(samples: Sequence[float]) -> float:
    """Half-width of the median's 95 % interval over the middle of the sorted samples."""
    low, high = median_interval(samples)
    middle = sorted(samples)[len(samples) // 2]
    return (high - low) / 2 / middle if middle > 0 else float("inf")


def stop(
    samples: Sequence[float],
    sampled_s: float,
    wall_s: float,
    limits: Limits,
    *,
    long_call: bool,
    only: int | None = None,
) -> StopReason | None:
    """Why to stop now, or None to go on.

    In this order: the wall; too few samples (go on); `only` so many are wanted ('n_min'); and at a checkpoint, the
    interval ('ci'), the sampled time ('seconds'), the most samples there are ('n_max').
    """
    n, points = len(samples), checkpoints(long_call)
    if wall_s >= limits.wall_s and n > 0:
        return "wall"
    if only is not None:
        return "n_min" if n >= only else None
    if n < points[0]:
        return None
    if n not in points and n < points[-1]:
        return None
    if n > 5 and relative_half_width(samples) <= limits.half_width:  # 5 samples have no 95 % interval
        return "ci"
    if sampled_s >= limits.seconds:
        return "seconds"
    return "n_max" if n >= points[-1] else None
