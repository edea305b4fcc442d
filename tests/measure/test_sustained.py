"""Sustained timing: settle, then back to back; nothing is flushed and the device never rests."""

from __future__ import annotations

from typing import Any

import pytest

from fabench.device import Device
from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fake_engine import MS, US, FakeEngine, Kernel

METHOD = method_for("sustained", Device("cuda", "fake"), "normal")


def run(engine: FakeEngine, kernels: dict[str, Kernel], windows: list[Any] | None = None) -> dict[str, Measurement]:
    seen = [] if windows is None else windows
    candidates = [Candidate(name, engine.launcher(name, kernel), 3) for name, kernel in kernels.items()]
    return measure(candidates, METHOD, Limits(), engine, lambda *window: seen.append((engine.host, *window)))


def test_the_device_is_never_idle_flushed_or_held_and_inputs_rotate() -> None:
    engine = FakeEngine()
    [out] = run(engine, {"a": Kernel(1 * MS)}).values()

    assert {entry[0] for entry in engine.journal} == {"a", "record", "wait"}
    indices = [entry[1] for entry in engine.journal if entry[0] == "a"]
    assert indices == [i % 3 for i in range(len(indices))]
    assert out.samples_ns == [pytest.approx(1 * MS)] * 30
    assert out.stop_reason == "ci"
    assert out.idle_s == 0.0
    assert engine.work_ns > 0.999 * out.device_s * 1e9


def test_three_seconds_pass_before_the_first_sample() -> None:
    engine, windows = FakeEngine(), list[Any]()
    [out] = run(engine, {"a": Kernel(1 * MS)}, windows).values()

    assert out.spans_s[0][0] >= 3.0
    assert next(at for at, _, samples in windows if samples) >= 3e9


def test_it_settles_on_the_clock_that_power_allows() -> None:
    engine = FakeEngine()
    [out] = run(engine, {"a": Kernel(lambda: 1 * MS if engine.host < 2.6e9 else 1.15 * MS)}).values()

    assert out.samples_ns == [pytest.approx(1.15 * MS)] * 30
    assert "unstable" not in out.flags


def test_a_card_that_never_settles_is_measured_all_the_same_and_flagged() -> None:
    engine = FakeEngine()
    [out] = run(engine, {"a": Kernel(lambda: 1 * MS * (1 + engine.host / 60e9))}).values()

    assert "unstable" in out.flags
    assert out.n >= 30
    assert out.spans_s[0][0] == pytest.approx(15, abs=1)


def test_short_calls_share_an_event_until_a_span_is_a_millisecond() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(20 * US, host=5 * US)}).values()

    assert out.K == 50
    assert out.samples_ns[0] == pytest.approx(20 * US, rel=0.01)
    assert "host_sync" not in out.flags


def test_a_call_that_the_host_cannot_queue_fast_enough_is_flagged_and_reports_wall_time() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(20 * US, host=100 * US)}).values()

    assert "host_sync" in out.flags
    assert out.samples_ns[0] == pytest.approx(100 * US, rel=0.05)


def test_candidates_run_one_after_another_and_a_broken_one_stops_no_other() -> None:
    engine = FakeEngine()

    def broken(index: int) -> None:
        raise ValueError("no such kernel")

    candidates = [Candidate("broken", broken, 1), Candidate("fine", engine.launcher("fine", Kernel(1 * MS)), 2)]
    out = measure(candidates, METHOD, Limits(), engine, lambda *_: None)

    assert out["broken"].error == "ValueError: no such kernel"
    assert out["fine"].n == 30


def test_a_long_call_may_stop_at_five_samples_once_they_took_long_enough() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(200 * MS)}).values()

    assert (out.n, out.stop_reason) == (5, "seconds")
    assert "hot" not in out.flags
