"""Sustained timing: one candidate at a time, back to back, until the card has settled at the clock its power allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fabench.measure.engine import Engine
from fabench.measure.rules import LEAK_SHARE, WARMUP_WINDOWS, Rules
from fabench.measure.stopping import Limits, next_checkpoint, relative_half_width, stop
from fabench.measure.track import Track

SETTLE_CAP_S = 15.0
"""A card that has not settled by then is measured as it is, and the row is flagged unstable."""
SETTLE_BATCHES_S = 0.5
"""Medians of stretches this long are compared to see whether it has."""
LOOK_S = 0.2
"""The first look at a call takes about this long."""


class Sustained:
    """Runs each track in turn. Spans follow each other without a gap: one event ends one and starts the next."""

    def __init__(
        self,
        tracks: Sequence[Track],
        rules: Rules,
        limits: Limits,
        engine: Engine,
        on_window: Callable[[str, list[float]], None],
    ) -> None:
        self.tracks, self.rules, self.limits, self.engine, self.on_window = tracks, rules, limits, engine, on_window

    def run(self) -> None:
        """Measure every track; what became of each is in `track.out`."""
        for track in self.tracks:
            try:
                self._measure(track)
            except Exception as error:
                track.fail(error)
                self.engine.synchronize()
            track.conclude()

    def _measure(self, track: Track) -> None:
        track.candidate.enter()
        self._set_loops(track)
        stream = SpanStream(self.engine, self._ahead(track))
        self._settle(track, stream)
        engine, out, like = self.engine, track.out, track.candidate.like
        began = engine.now_ns()
        while out.stop_reason is None:
            long_call = track.is_long
            aim = next_checkpoint(len(out.samples_ns), long_call) if like is None else like[1]
            room = aim - len(out.samples_ns)
            count = min(max(1, room), max(1, int(self.rules.window_ns / max(track.t_ns * track.K, 1.0))))
            opened = engine.now_ns()
            fresh = stream.run(track.sampled_span, count, track.K)
            closed = engine.now_ns()
            out.samples_ns += fresh
            out.spans_s.append((opened / 1e9, closed / 1e9))
            out.wall_s = (closed - began) / 1e9
            self.on_window(track.name, fresh)
            track.candidate.enter()
            sampled_s = sum(out.samples_ns) * track.K / 1e9
            only = None if like is None else like[1]
            out.stop_reason = stop(out.samples_ns, sampled_s, out.wall_s, self.limits, long_call=long_call, only=only)
        stream.drain()
        out.device_s += (engine.now_ns() - began) / 1e9
        if stream.late > LEAK_SHARE * stream.spans:
            out.flags.add("host_sync")
        if relative_half_width(out.samples_ns) > self.rules.unstable_half_width:
            out.flags.add("unstable")

    def _set_loops(self, track: Track) -> None:
        """K, from calls queued back to back for a short while."""
        engine, start, end = self.engine, self.engine.event(), self.engine.event()
        calls = 1
        while True:
            engine.synchronize()
            queued = engine.now_ns()
            engine.record(start)
            for _ in range(calls):
                track.launch()
            engine.record(end)
            track.t_host_ns = (engine.now_ns() - queued) / calls
            engine.wait(end)
            track.t_ns = engine.elapsed_ns(start, end) / calls
            if calls > 1 or track.t_ns > LOOK_S * 1e9:
                break
            calls = max(2, min(1000, int(LOOK_S * 1e9 / max(track.t_ns, 1.0))))
        track.K = max(1, -int(-self.rules.span_ns // max(track.t_ns, 1.0)))
        if track.candidate.like is not None:
            track.K = track.candidate.like[0]

    def _ahead(self, track: Track) -> int:
        """Spans the host may run ahead: enough that the queue never runs dry, few enough that it never fills up."""
        return max(2, min(32, int(20e6 / max(track.t_ns * track.K, 1.0))))

    def _settle(self, track: Track, stream: SpanStream) -> None:
        """Run for the settling time, then on until successive stretches agree, or the cap."""
        engine, began, medians = self.engine, self.engine.now_ns(), list[float]()
        spans = max(1, int(SETTLE_BATCHES_S * 1e9 / max(track.t_ns * track.K, 1.0)))
        while True:
            batch = sorted(stream.run(track.span, spans, track.K))
            medians.append(batch[len(batch) // 2])
            self.on_window(track.name, [])
            track.candidate.enter()
            ran_s = (engine.now_ns() - began) / 1e9
            last = medians[-WARMUP_WINDOWS:]
            agree = len(last) == WARMUP_WINDOWS and max(last) <= min(last) * (1 + self.rules.warmup_tolerance)
            if ran_s >= self.rules.settle_s and agree:
                break
            if ran_s >= SETTLE_CAP_S:
                track.out.flags.add("unstable")
                break
        track.t_ns = medians[-1]
        track.out.device_s += (engine.now_ns() - began) / 1e9


class SpanStream:
    """An unbroken sequence of spans: the host stays a few ahead of the device and never lets the queue run dry."""

    def __init__(self, engine: Engine, ahead: int) -> None:
        self.engine, self.ahead = engine, ahead
        self._events: list[Any] = []
        """Ends of the spans not yet read, the end of the last one read first."""
        self.spans = 0
        self.late = 0
        """Spans that the device began to wait for before the host had queued them."""

    def run(self, span: Callable[[int], None], count: int, K: int) -> list[float]:
        """Queue `count` more spans and read as many; the time of one call in each. Some stay queued."""
        engine, read = self.engine, list[float]()
        if not self._events:
            self._events.append(self._mark())
        while len(read) < count:
            while len(self._events) <= self.ahead:
                span(0)
                if engine.asynchronous and engine.done(self._events[-1]):
                    self.late += 1
                self._events.append(self._mark())
                self.spans += 1
            start, end = self._events[:2]
            engine.wait(end)
            read.append(engine.elapsed_ns(start, end) / K)
            self._events.pop(0)
        return read

    def drain(self) -> None:
        """Let what is queued end."""
        self.engine.synchronize()

    def _mark(self) -> Any:
        event = self.engine.event()
        self.engine.record(event)
        return event
