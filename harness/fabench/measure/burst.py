"""Burst timing of the candidates of one case: estimate, warm up, sample, window by window and interleaved.

The steps and their numbers are those of docs/measurement.md; every constant is in `rules`. Windows of one case go round
A B C, then C B A, so that what drifts hits all alike. Nothing is discarded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median

from fabench.measure.engine import Engine
from fabench.measure.estimate import Estimate, OnWindow
from fabench.measure.pace import Pace
from fabench.measure.rules import ONE_CALL_NS, WARMUP_WINDOWS, Rules
from fabench.measure.stopping import Limits, checkpoints, next_checkpoint, relative_half_width, stop
from fabench.measure.track import Track, percentile95
from fabench.measure.window import Window, Windows


class Burst:
    """The burst, graph and cpu regimes: they differ in their rules, and in what a span launches."""

    def __init__(
        self, tracks: Sequence[Track], rules: Rules, limits: Limits, engine: Engine, on_window: OnWindow
    ) -> None:
        self.tracks, self.rules, self.limits, self.engine, self.on_window = tracks, rules, limits, engine, on_window
        self.pace, self.windows = Pace(engine, rules), Windows(engine)
        self.estimate = Estimate(engine, rules, self.pace, self.windows)
        self._last: Track | None = None

    def run(self) -> None:
        """Take every track through its steps; what became of each is in `track.out`."""
        for track in self.tracks:
            self._step(track, lambda track: self.estimate.run(track, self.on_window))
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
            self.estimate.set_loops(track)
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
        if window.stray and self.estimate.is_other_stream(track):
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
