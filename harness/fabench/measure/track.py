"""One candidate's way through a measurement: what is launched, what is known of it, and what comes out."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.measure.engine import Engine
from fabench.measure.graph import Replay
from fabench.measure.rules import (
    HOST_MARGIN,
    LATE_RETRIES,
    LATE_SHARE,
    LEAK_RETRIES,
    LEAK_SHARE,
    SPIN_CAP_NS,
    WAIT_SHARE,
    Rules,
)
from fabench.measure.window import Window
from fabench.names import Flag, StopReason
from fabench.outcome import sentence
from fabench.records import Derived


@dataclass
class Candidate:
    """What is measured under a name: `launch(i)` queues one call on input set i < `rotation` and returns its output."""

    name: str
    launch: Callable[[int], Any]
    rotation: int
    enter: Callable[[], None] = lambda: None
    """Called before each stretch of this candidate's launches and replays."""
    like: tuple[int, int] | None = None
    """K and n to take, of a row measured before, instead of what the rules would choose."""


@dataclass
class Measurement:
    """What measuring one candidate gave. A failure has no samples that count."""

    samples_ns: list[float] = field(default_factory=list)
    """Nanoseconds of one call, in the order taken."""
    K: int = 1
    n: int = 0
    t_host_ns: int | None = None
    """Host time to queue one call (p95), None on a CPU."""
    stop_reason: StopReason | None = None
    flags: set[Flag] = field(default_factory=set)
    derived: Derived = field(default_factory=Derived)
    kept: tuple[int, Any] | None = None
    """Input set and output of one timed call, picked at random."""
    replay: Replay | None = None
    """In the graph regime: what was replayed, to be launched again on changed inputs."""
    device_s: float = 0.0
    idle_s: float = 0.0
    wall_s: float = 0.0
    spans_s: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each sampling window on the host's monotonic clock: where telemetry belongs to this row."""
    error: str | None = None
    """Why there are no samples, in a sentence."""
    failure: Exception | None = None
    """The exception behind `error`, if a launch raised it."""
    unsupported: str | None = None
    """Why the candidate cannot be measured in this regime at all."""


class Track:
    """The state of one candidate while it is measured."""

    def __init__(self, candidate: Candidate, engine: Engine, rules: Rules, rng: random.Random) -> None:
        self.candidate, self.engine, self.rules, self.rng = candidate, engine, rules, rng
        self.out = Measurement()
        self.t_ns = 0.0
        """Time of one call, as known so far."""
        self.t_host_ns = 0.0
        """Host time of one call (of one replay, for a graph)."""
        self.K = 1
        self.by_wall = False
        self.leak_retries = 0
        self.per_span_ns = 0.0
        """Device time of one span with its flush and spin, as seen in the last window."""
        self.medians: list[float] = []
        """Medians of the warm-up windows with the present K."""
        self.hosts_ns: list[float] = []
        """Host time of one call (p95) in each of them."""
        self.leaked = 0
        """Timed spans so far that were not queued in time."""
        self.idle_ns: float | None = None
        """Idle time owed after the last window."""
        self.replay: Replay | None = None
        self._cursor = 0
        self._picked = 0
        self._output: Any = None

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name

    @property
    def live(self) -> bool:
        """True unless it has failed or cannot be measured."""
        return self.out.error is None and self.out.unsupported is None

    @property
    def is_long(self) -> bool:
        """A span that is a window by itself."""
        return self.t_ns * self.K > self.rules.long_call_ns

    @property
    def launches(self) -> int:
        """How often the host launches in one span."""
        return 1 if self.replay is not None else self.K

    @property
    def spin_ns(self) -> float:
        """How long the device is held before a span; 0 for not at all."""
        if not self.rules.spin or not self.engine.asynchronous:
            return 0.0
        return min(HOST_MARGIN * self.t_host_ns * self.launches, SPIN_CAP_NS)

    def mend_leak(self, window: Window) -> bool:
        """Lengthen the spin if the host outlasts it; a call that keeps the host as the device does is timed by it."""
        if not self.rules.spin or self.by_wall or window.leaked <= LEAK_SHARE * len(window.samples_ns):
            return False
        waits = min(window.host_ns) >= self.spin_ns + WAIT_SHARE * self.t_ns * self.K
        self.t_host_ns = max(self.t_host_ns, percentile95(window.host_ns) / self.launches)
        self.leak_retries += 1
        if self.leak_retries > (LEAK_RETRIES if waits else LATE_RETRIES):
            self.by_wall = True
            self.out.flags.add("host_sync")
        self.medians, self.hosts_ns, self.per_span_ns = [], [], 0.0
        return True

    def flag_leaks(self) -> None:
        """Say of the samples how often the host was late for them."""
        if self.rules.spin and self.leaked > LATE_SHARE * len(self.out.samples_ns):
            self.out.flags.add("host_sync" if self.leaked > LEAK_SHARE * len(self.out.samples_ns) else "host_late")

    def launch(self) -> tuple[int, Any]:
        """One call on the next input set; returns which, and the output."""
        index, self._cursor = self._cursor, (self._cursor + 1) % self.candidate.rotation
        return index, self.candidate.launch(index)

    def span(self, _: int = 0) -> None:
        """The K calls of one timed span."""
        if self.replay is not None:
            self.replay.run()
            return
        for _ in range(self.K):
            self._output = self.launch()

    def sampled_span(self, _: int = 0) -> None:
        """A timed span that counts. Of all their outputs one is kept, each with the same chance (a reservoir)."""
        self.span()
        self._picked += 1
        if self.rng.random() * self._picked < 1 and self.replay is None:
            self.out.kept = self._output
        self._output = None

    def fail(self, error: Exception) -> None:
        """Give up on the candidate because of what a launch raised."""
        traceback.clear_frames(error.__traceback__)  # their locals hold device memory
        self.out.error, self.out.failure = sentence(error), error
        self.release()

    def release(self) -> None:
        """Drop what holds device memory and is no longer needed."""
        self._output = None
        if not self.live:
            self.replay = self.out.replay = self.out.kept = None

    def conclude(self) -> Measurement:
        """The measurement as it is reported."""
        out = self.out
        out.K, out.n = self.K, len(out.samples_ns)
        out.t_host_ns = round(self.t_host_ns) if self.engine.asynchronous else None
        out.derived = Derived(
            flush_bytes=self.engine.flush_bytes if self.rules.flush else None,
            rotation=self.candidate.rotation,
            idle_s=None if self.idle_ns is None else self.idle_ns / 1e9,
            loops=self.K,
        )
        out.replay = self.replay
        self.release()
        return out


def percentile95(values: Sequence[float]) -> float:
    """The least value that 95 % of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return float(ordered[-(-95 * len(ordered) // 100) - 1])
