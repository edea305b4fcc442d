"""The rhythm of a run: idle time that keeps the card at its full clock, and a canary that shows when it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fabench.measure.engine import Engine
from fabench.measure.rules import (
    CALIBRATION_REST_S,
    GATE_GIVE_UP_S,
    GATE_NS,
    GATE_SPANS,
    GATE_TOLERANCE,
    Rules,
)

CALIBRATION_N = 2048
CALIBRATION_READINGS = 3
"""Readings in a row that must agree within the tolerance for the card to count as cold."""
GATE_SPIN_NS = 200e3


@dataclass
class Opening:
    """What it took to open a window."""

    rest_ns: float = 0.0
    """Idle time that the window before this one owed."""
    wait_ns: float = 0.0
    """Time until the card had recovered."""
    gate_ns: float = 0.0
    """Device time of the canary."""
    gate_work_ns: float = 0.0
    """The same without its spins."""
    drifted: bool = False

    def add(self, reading_ns: float) -> None:
        """Count one reading of the canary."""
        self.gate_work_ns += reading_ns * GATE_SPANS
        self.gate_ns += reading_ns * GATE_SPANS + GATE_SPIN_NS


class Pace:
    """Opens and closes windows on one engine. What it learns of the card stays with the engine (`engine.cold`)."""

    def __init__(self, engine: Engine, rules: Rules) -> None:
        self.engine, self.rules, self.cold = engine, rules, engine.cold
        self._events = [(engine.event(), engine.event()) for _ in range(GATE_SPANS)]

    def open(self) -> Opening:
        """Leave the device idle as long as is owed, then wait until its canary runs at its cold speed."""
        opening = Opening()
        opening.rest_ns = self._rest()
        began = self.engine.now_ns()
        if self.rules.gated and self.engine.gate_dtype is not None:
            if self.cold.gate_ns is None:
                self.calibrate()
            self._pass_gate(opening)
        opening.wait_ns = max(0.0, self.engine.now_ns() - began - opening.gate_ns)
        return opening

    def close(self, work_ns: float, *, long_call: bool = False) -> float:
        """Owe the idle time that `work_ns` of work, spins aside, calls for; returns it in nanoseconds."""
        duty = self.rules.duty
        owed = work_ns * (1 / duty - 1)
        if long_call and duty < 1:
            owed = max(work_ns, self.rules.long_call_idle_ns)
        self.cold.rest_until_ns = int(self.engine.now_ns() + owed)
        return owed

    def calibrate(self) -> None:
        """Learn the canary's cold time: wait until a few readings in a row, far apart, agree."""
        engine, dtype = self.engine, self.engine.gate_dtype
        assert dtype is not None
        trial = engine.gemm(dtype, CALIBRATION_N)
        self.time(trial)
        span_ns = self.time(trial)
        n = CALIBRATION_N * (GATE_NS / GATE_SPANS / max(span_ns, 1.0)) ** (1 / 3)
        self.cold.gate = engine.gemm(dtype, max(256, min(8192, round(n / 256) * 256)))
        self.time(self.cold.gate)
        readings: list[float] = []
        deadline = engine.now_ns() + GATE_GIVE_UP_S * 1e9
        while engine.now_ns() < deadline:
            engine.sleep(CALIBRATION_REST_S)
            readings.append(self.time(self.cold.gate))
            last = readings[-CALIBRATION_READINGS:]
            if len(last) == CALIBRATION_READINGS and max(last) <= min(last) * (1 + GATE_TOLERANCE):
                break
        self.cold.gate_ns = sorted(readings[-CALIBRATION_READINGS:])[len(readings[-CALIBRATION_READINGS:]) // 2]

    def _rest(self) -> float:
        began = self.engine.now_ns()
        if self.cold.rest_until_ns > began:
            self.engine.sleep((self.cold.rest_until_ns - began) / 1e9)
        return self.engine.now_ns() - began

    def _pass_gate(self, opening: Opening) -> None:
        assert self.cold.gate is not None
        assert self.cold.gate_ns is not None
        began = self.engine.now_ns()
        while True:
            reading = self.time(self.cold.gate)
            opening.add(reading)
            if reading < self.cold.gate_ns * (1 - GATE_TOLERANCE):
                # It was not as cold before as it was taken to be; asked twice, lest one odd reading set the mark.
                reading = max(reading, self.time(self.cold.gate))
                opening.add(reading)
                self.cold.gate_ns = min(self.cold.gate_ns, reading)
                return
            if reading <= self.cold.gate_ns * (1 + GATE_TOLERANCE):
                return
            if self.engine.now_ns() - began >= GATE_GIVE_UP_S * 1e9:
                self.cold.gate_ns, opening.drifted = reading, True
                return
            self.engine.sleep(self.rules.gate_retry_s)

    def time(self, launch: Callable[[], Any]) -> float:
        """The median of a few spans of `launch`, queued behind one spin."""
        engine = self.engine
        engine.spin(GATE_SPIN_NS)
        for start, end in self._events:
            engine.record(start)
            launch()
            engine.record(end)
        engine.wait(self._events[-1][1])
        return sorted(engine.elapsed_ns(start, end) for start, end in self._events)[GATE_SPANS // 2]
