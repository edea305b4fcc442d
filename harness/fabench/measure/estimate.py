"""The first look at a call: what it takes on the host and on the device, and so how it is timed.

It ends with K, the calls of a timed span, or with a graph of K calls; or with the finding that the call's work is on
another stream, or cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from fabench.measure import graph
from fabench.measure.engine import Engine
from fabench.measure.pace import Pace
from fabench.measure.rules import (
    CAPTURE_TOLERANCE,
    CAPTURES,
    CPU_RESOLUTIONS,
    ESTIMATE_CALLS,
    ESTIMATE_S,
    STRAY_TRIES,
    Rules,
)
from fabench.measure.track import Track, percentile95
from fabench.measure.window import Windows, is_stray, late_ns
from fabench.outcome import is_out_of_memory, sentence

OnWindow = Callable[[str, list[float]], None]


class Estimate:
    """What one call of a track takes, and how many of them a span holds."""

    def __init__(self, engine: Engine, rules: Rules, pace: Pace, windows: Windows) -> None:
        self.engine, self.rules, self.pace, self.windows = engine, rules, pace, windows

    def run(self, track: Track, on_window: OnWindow) -> bool:
        """Time a few calls one by one, then choose K or capture; True, for there is no more to do in this phase."""
        engine = self.engine
        start, end = engine.event(), engine.event()
        host: list[float] = []
        device: list[float] = []
        strays = 0
        track.candidate.enter()
        began = engine.now_ns()
        while len(host) < ESTIMATE_CALLS and (not host or engine.now_ns() - began < ESTIMATE_S * 1e9):
            engine.synchronize()
            queued = engine.now_ns()
            engine.record(start)
            track.launch()
            engine.record(end)
            host.append(engine.now_ns() - queued)
            strays += self._is_stray(start, end)
            device.append(engine.elapsed_ns(start, end))
        if strays and self.is_other_stream(track):
            return True
        track.t_host_ns, track.t_ns = percentile95(host), median(device)
        if self.rules.captured:
            self._capture(track)
        else:
            self.set_loops(track)
        track.out.device_s += sum(device) / 1e9
        on_window(track.name, [])
        self.pace.close(min(sum(device), self.rules.window_ns))
        return True

    def _is_stray(self, start: object, end: object) -> bool:
        late = late_ns(self.engine, end)
        return is_stray(late, self.engine.elapsed_ns(start, end))

    def is_other_stream(self, track: Track) -> bool:
        """Look again and again at a call after which the device was busy, without a spin that could hide it."""
        if not self.engine.asynchronous:
            return False
        start, end = self.engine.event(), self.engine.event()
        for _ in range(STRAY_TRIES):
            self.engine.synchronize()
            self.engine.record(start)
            track.launch()
            self.engine.record(end)
            if not self._is_stray(start, end):
                return False
        track.out.error = "other stream: the device was still at work after the call's own stream had finished"
        track.release()
        return True

    def set_loops(self, track: Track) -> None:
        """K, from the time of a call: a timed span must be long beside the timer's step."""
        least = self.rules.span_ns
        if not self.engine.asynchronous:
            least = max(least, CPU_RESOLUTIONS * self.engine.resolution_ns)
        K = max(1, -int(-least // max(track.t_ns, 1.0)))
        if track.candidate.like is not None:
            K = track.candidate.like[0]
        if K != track.K:
            track.K, track.medians, track.per_span_ns = K, [], 0.0

    def _capture(self, track: Track) -> None:
        """Capture the track's graph; again, if a replay shows that a call takes another time than was thought."""
        rotation, launch, rng, like = track.candidate.rotation, track.candidate.launch, track.rng, track.candidate.like
        try:
            for _ in range(CAPTURES):
                K = graph.loops(rotation, track.t_ns, self.rules.span_ns) if like is None else like[0]
                if track.replay is not None and abs(K - track.K) <= CAPTURE_TOLERANCE * track.K:
                    return
                track.replay, track.K = None, K
                track.replay = graph.capture(self.engine, launch, rotation, K, rng.randrange(K))
                for _ in range(2):  # the first replay also uploads the graph
                    seen = self.windows.run(track.span, 1, K, flush=False, spin_ns=track.spin_ns)
                track.t_ns, track.t_host_ns = seen.samples_ns[0], seen.host_ns[0]
        except Exception as error:
            self.engine.synchronize()
            if is_out_of_memory(error):
                raise
            track.out.unsupported = f"cannot be captured in a CUDA graph: {sentence(error)}"
            track.release()
