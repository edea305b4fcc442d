"""Calibration of the canary that opens windows, and the idle time that they owe."""

from __future__ import annotations

import pytest

from fabench.measure.pace import Pace
from fabench.measure.rules import RULES
from fake_engine import MS, US, FakeEngine


def test_calibration_waits_until_three_readings_agree() -> None:
    engine = FakeEngine(gemm_ns=lambda e: 300 * US * (1.05 if e.host < 1e9 else 1.0) * (1 + 1e-12 * e.host))
    pace = Pace(engine, RULES["burst"])
    engine.host = 0.75e9  # the first readings are hot ones
    pace.calibrate()

    assert engine.cold.gate_ns == pytest.approx(300 * US, rel=0.003)
    assert 1.2e9 < engine.host < 2e9


def test_calibration_makes_spans_of_a_third_of_a_millisecond_and_gives_up_after_three_seconds() -> None:
    readings = iter(range(10**6))
    engine = FakeEngine(gemm_ns=lambda e: 41 * US * (1 + 0.1 * (next(readings) % 7)))
    Pace(engine, RULES["burst"]).calibrate()

    sizes = {int(entry[0].split()[2]) for entry in engine.journal if entry[0].startswith("gemm")}
    assert sizes == {2048, 3584}  # 2048 (1 ms / 3 / 57 us)^(1/3), in steps of 256
    assert 3e9 < engine.host < 3.3e9
    assert engine.cold.gate_ns is not None


def test_what_was_learnt_of_the_card_outlives_a_case() -> None:
    engine = FakeEngine()
    Pace(engine, RULES["burst"]).open()
    before = sum(entry[0] == "sleep" for entry in engine.journal)
    Pace(engine, RULES["burst"]).open()

    assert sum(entry[0] == "sleep" for entry in engine.journal) == before


def test_the_next_window_sleeps_only_what_is_still_owed() -> None:
    engine = FakeEngine()
    pace = Pace(engine, RULES["burst"])
    pace.open()
    owed = pace.close(10 * MS)
    engine.host += 30e6  # the host was busy meanwhile
    opening = pace.open()

    assert owed == pytest.approx(40e6)
    assert opening.rest_ns == pytest.approx(10e6)
    assert opening.wait_ns < 1e6


def test_one_odd_fast_reading_does_not_become_the_cold_value() -> None:
    engine = FakeEngine()
    pace = Pace(engine, RULES["burst"])
    pace.open()
    calls = iter([250 * US] * 3 + [300 * US] * 100)
    engine.gemm_ns = lambda e: next(calls)
    pace.open()

    assert engine.cold.gate_ns == pytest.approx(300 * US)
