"""Timing the candidates of one case by the rules of a method: which regime runs them, and what all regimes share."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator, Sequence

from fabench.measure.burst import Burst
from fabench.measure.engine import Engine
from fabench.measure.estimate import OnWindow
from fabench.measure.rules import RULES, SHORT_NULLS
from fabench.measure.stopping import Limits
from fabench.measure.track import Candidate, Measurement, Track
from fabench.records import Method


def measure(
    candidates: Sequence[Candidate],
    method: Method,
    limits: Limits,
    engine: Engine,
    on_window: OnWindow,
    *,
    null_ns: float | None = None,
    seed: int = 0,
) -> dict[str, Measurement]:
    """Measure the candidates of one case; the result has one entry for each.

    `on_window(name, samples)` is told after every window of a candidate, with the samples that count (none while it is
    estimated and warmed up), before the device rests. `null_ns` is the launch floor, for the flag `short`; `seed` picks
    the output that is kept. A launch that raises ends its own candidate (`error`, `failure`) and no other, unless the
    device itself is lost: then the exception comes out of here.
    """
    rules = RULES[method.regime]
    rng = random.Random(seed)
    tracks = [Track(candidate, engine, rules, rng) for candidate in candidates]
    with quiet_gc():
        if method.regime == "sustained":
            from fabench.measure.sustained import Sustained

            Sustained(tracks, rules, limits, engine, on_window).run()
        else:
            Burst(tracks, rules, limits, engine, on_window).run()
    for track in tracks:
        if null_ns and track.live and not rules.captured and track.t_ns < SHORT_NULLS * null_ns:
            track.out.flags.add("short")
    return {track.name: track.out for track in tracks}


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """Python's collector off; what lives now is set aside, so that a collection between windows is quick.

    Only young garbage is collected first: walking all of torch's objects would take longer than many a measurement.
    """
    was_on = gc.isenabled()
    gc.collect(1)
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


__all__ = ["Candidate", "Limits", "Measurement", "measure"]
