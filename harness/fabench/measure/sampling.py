"""Burst timing of the candidates of one case: estimate, warm up, sample, window by window and interleaved.

The steps and their numbers are those of docs/measurement.md; every constant is in `rules`. Windows of one case go round
A B C, then C B A, so that what drifts hits all alike. Nothing is discarded.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Iterator, Sequence

from fabench.measure import graph
from fabench.measure.engine import Engine
from fabench.measure.pace import Pace
from fabench.measure.rules import (
    CAPTURE_TOLERANCE,
    CAPTURES,
    CPU_RESOLUTIONS,
    ESTIMATE_CALLS,
    ESTIMATE_S,
    ONE_CALL_NS,
    RULES,
    SHORT_NULLS,
    STRAY_TRIES,
    WARMUP_WINDOWS,
    Rules,
)
from fabench.measure.stopping import Limits, checkpoints, next_checkpoint, relative_half_width, stop
from fabench.measure.track import Candidate, Measurement, Track, percentile95
from fabench.measure.window import Window, Windows, is_stray, late_ns
from fabench.outcome import is_out_of_memory, sentence
from fabench.records import Method

OnWindow = Callable[[str, list[float]], None]


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


class Burst:
    """The burst, graph and cpu regimes: they differ in their rules, and in what a span launches."""

    def __init__(
        self, tracks: Sequence[Track], rules: Rules, limits: Limits, engine: Engine, on_window: OnWindow
    ) -> None:
        self.tracks, self.rules, self.limits, self.engine, self.on_window = tracks, rules, limits, engine, on_window
        self.pace, self.windows = Pace(engine, rules), Windows(engine)
        self._last: Track | None = None

    def run(self) -> None:
        """Take every track through its steps; what became of each is in `track.out`."""
        for track in self.tracks:
            self._step(track, self._estimate)
        self._interleave(self._warm_up)
        self._interleave(self._sample)
        for track in self.tracks:
            track.conclude()

    def _interleave(self, step: Callable[[Track], bool]) -> None:
        """Give each live track a window in turn, reversing the order every pass, until its step says it is done."""
        live = [track for track in self.tracks if track.live]
        while live:
            live = [track for track in live if not self._step(track, step)][::-1]
            gc.collect()

    def _step(self, track: Track, step: Callable[[Track], bool]) -> bool:
        """One step of one track; True if it has no more to do in this phase, failed ones included."""
        try:
            return step(track) or not track.live
        except Exception as error:
            track.fail(error)
            self.engine.synchronize()  # raises if the device is lost, and with it every other candidate
            return True

    # Estimate: what one call takes, on the host and on the device.

    def _estimate(self, track: Track) -> bool:
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
        if strays and self._is_other_stream(track):
            return True
        track.t_host_ns, track.t_ns = percentile95(host), median(device)
        if self.rules.captured:
            self._capture(track)
        else:
            self._set_loops(track)
        track.out.device_s += sum(device) / 1e9
        self.on_window(track.name, [])
        self.pace.close(min(sum(device), self.rules.window_ns))
        return True

    def _is_stray(self, start: object, end: object) -> bool:
        late = late_ns(self.engine, end)
        return is_stray(late, self.engine.elapsed_ns(start, end))

    def _is_other_stream(self, track: Track) -> bool:
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

    def _set_loops(self, track: Track) -> None:
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

    # Warm-up and sampling: one window at a time.

    def _window(self, track: Track, call: Callable[[int], None], most: int) -> Window:
        """One window of at most `most` spans, opened and closed by the pace."""
        engine, out = self.engine, track.out
        opening = self.pace.open()
        rested = (self._last or track).out  # idle time belongs to the window that made it needed
        rested.idle_s += (opening.rest_ns + opening.wait_ns) / 1e9
        rested.wall_s += (opening.rest_ns + opening.wait_ns) / 1e9
        self._last = track
        opened = engine.now_ns()
        track.candidate.enter()
        if opening.drifted:
            for each in self.tracks:
                if each.live:
                    each.out.flags.add("drift")
        spin = track.spin_ns
        span = track.per_span_ns or track.t_ns * track.K + spin
        count = max(1, int((self.rules.window_ns - opening.gate_ns) / max(span, 1.0)))
        count = 1 if track.is_long else min(count, most)
        if self.rules.primed and not track.is_long:
            track.span()
        window = self.windows.run(call, count, track.K, flush=self.rules.flush, spin_ns=spin, by_wall=track.by_wall)
        track.per_span_ns = window.busy_ns / count
        owed = self.pace.close(window.work_ns + opening.gate_work_ns, long_call=track.is_long)
        track.idle_ns = owed if self.rules.duty < 1 else None
        out.device_s += (window.busy_ns + opening.gate_ns) / 1e9
        out.wall_s += (engine.now_ns() - opened + opening.gate_ns) / 1e9
        out.spans_s.append((opened / 1e9, engine.now_ns() / 1e9))
        return window

    def _warm_up(self, track: Track) -> bool:
        cap_s = min(self.rules.warmup_cap_s, self.rules.warmup_cap_s * self.limits.seconds / Limits().seconds)
        window = self._window(track, track.span, checkpoints(False)[0])
        self.on_window(track.name, [])
        if track.mend_leak(window):
            return False
        if self.engine.asynchronous:
            track.hosts_ns.append(percentile95(window.host_ns) / track.launches)
            track.t_host_ns = min(track.hosts_ns[-WARMUP_WINDOWS:])  # one hiccup of the host must not last
        track.t_ns = median(window.samples_ns)
        track.medians.append(track.t_ns)
        if track.replay is None:
            self._set_loops(track)
        if track.t_ns > ONE_CALL_NS:
            return True
        last = track.medians[-WARMUP_WINDOWS:]
        tolerance = self.rules.long_warmup_tolerance if track.is_long else self.rules.warmup_tolerance
        settled = len(last) == WARMUP_WINDOWS and max(last) <= min(last) * (1 + tolerance)
        if track.out.wall_s >= cap_s:
            if not settled:
                track.out.flags.add("unstable")
            return True
        return settled

    def _sample(self, track: Track) -> bool:
        out, long_call = track.out, track.is_long
        if not out.samples_ns:
            out.wall_s, out.spans_s = 0.0, []  # those of the warm-up are not the row's
        if long_call and self.rules.long_calls is not None:
            out.flags.add("hot")
        like = track.candidate.like
        aim = next_checkpoint(len(out.samples_ns), long_call) if like is None else like[1]
        room = aim - len(out.samples_ns)
        window = self._window(track, track.sampled_span, max(1, room))
        out.samples_ns += window.samples_ns
        track.leaked += window.leaked
        self._keep_replayed(track)
        self.on_window(track.name, window.samples_ns)
        if window.stray and self._is_other_stream(track):
            return True
        only = like[1] if like is not None else self.rules.long_calls if long_call else None
        sampled_s = sum(out.samples_ns) * track.K / 1e9
        out.stop_reason = stop(out.samples_ns, sampled_s, out.wall_s, self.limits, long_call=long_call, only=only)
        if out.stop_reason is None:
            return False
        track.t_ns = median(out.samples_ns)
        track.flag_leaks()
        if relative_half_width(out.samples_ns) > self.rules.unstable_half_width:
            out.flags.add("unstable")
        return True

    def _keep_replayed(self, track: Track) -> None:
        """Keep a copy of a replay's output, of a window picked at random."""
        if track.replay is not None and track.rng.random() * len(track.out.spans_s) < 1:
            track.out.kept = (track.replay.index, self.engine.clone(track.replay.output))


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


__all__ = ["Candidate", "Limits", "Measurement", "measure"]
