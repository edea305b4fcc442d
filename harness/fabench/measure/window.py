"""One window: a few timed spans queued back to back, with no host sync between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fabench.measure.engine import Engine
from fabench.measure.rules import STRAY_FLOOR_NS, STRAY_SHARE


@dataclass
class Window:
    """What one window saw; times are of one call, except where said."""

    samples_ns: list[float] = field(default_factory=list)
    host_ns: list[float] = field(default_factory=list)
    """Host time of each span, from before its spin to after its end event."""
    leaked: int = 0
    """Spans whose start event the device had passed before the span was fully queued."""
    busy_ns: float = 0.0
    """Device time of the whole window, flushes and spins included."""
    spun_ns: float = 0.0
    """That of the spins alone: they hold one SM, and draw next to no power."""
    stray: bool = False
    """A device-wide sync after the last end event returned late: work on another stream."""

    @property
    def work_ns(self) -> float:
        """Device time that warms the card: all but the spins."""
        return max(0.0, self.busy_ns - self.spun_ns)


class Windows:
    """Runs windows on an engine; keeps the events, which are costly to make, from one to the next."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pairs: list[tuple[Any, Any]] = []
        self._begin = engine.event()
        if engine.asynchronous and engine.cold.sync_ns is None:
            engine.cold.sync_ns = sync_cost_ns(engine)

    def run(
        self, call: Callable[[int], None], count: int, K: int, *, flush: bool, spin_ns: float, by_wall: bool = False
    ) -> Window:
        """Time `count` spans of K calls; `call(s)` makes the K calls of span `s`.

        The device is held by a spin of `spin_ns` while the host queues a span. `by_wall` times from sync to sync by the
        host's clock instead: for a call that waits for the device.
        """
        if by_wall:
            return self._by_wall(call, count, K, flush=flush)
        engine, window = self.engine, Window()
        while len(self._pairs) < count:
            self._pairs.append((engine.event(), engine.event()))
        pairs = self._pairs[:count]
        engine.record(self._begin)
        for s, (start, end) in enumerate(pairs):
            queued = engine.now_ns()
            if spin_ns:
                engine.spin(spin_ns)
            if flush:  # after the spin: it also wakes the SMs, which costs a call that follows a spin up to 2 us
                engine.flush()
            engine.record(start)
            call(s)
            engine.record(end)
            window.host_ns.append(engine.now_ns() - queued)
            if engine.asynchronous and engine.done(start):
                window.leaked += 1
        last = pairs[-1][1]
        late = late_ns(engine, last)
        window.samples_ns = [engine.elapsed_ns(start, end) / K for start, end in pairs]
        window.busy_ns = engine.elapsed_ns(self._begin, last)
        window.spun_ns = spin_ns * count
        window.stray = is_stray(late, window.samples_ns[-1] * K)
        return window

    def _by_wall(self, call: Callable[[int], None], count: int, K: int, *, flush: bool) -> Window:
        engine, window = self.engine, Window()
        for s in range(count):
            opened = engine.now_ns()
            if flush:
                engine.flush()
            engine.synchronize()
            start = engine.now_ns()
            call(s)
            engine.synchronize()
            end = engine.now_ns()
            window.samples_ns.append((end - start) / K)
            window.host_ns.append(end - start)
            window.busy_ns += end - opened
        return window


def late_ns(engine: Engine, end: Any) -> float:
    """Wait for `end`, then for the whole device: how much longer that takes than a sync with nothing to wait for."""
    engine.wait(end)
    waited = engine.now_ns()
    engine.synchronize()
    return engine.now_ns() - waited - (engine.cold.sync_ns or 0.0)


def sync_cost_ns(engine: Engine, tries: int = 5) -> float:
    """Host time of a device-wide sync right after an event was passed and nothing is left to do."""
    event, costs = engine.event(), list[int]()
    for _ in range(tries):
        engine.spin(1e3)
        engine.record(event)
        engine.wait(event)
        waited = engine.now_ns()
        engine.synchronize()
        costs.append(engine.now_ns() - waited)
    return float(sorted(costs)[tries // 2])


def is_stray(late_ns: float, span_ns: float) -> bool:
    """True if a device-wide sync returned so late after a span of `span_ns` that other work must have been running."""
    return late_ns > max(STRAY_SHARE * span_ns, STRAY_FLOOR_NS)
