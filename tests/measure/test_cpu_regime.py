"""Measurements on a CPU, which has no clock to spare, no spin and no flush."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, measure
from fake_engine import MS, US, FakeEngine, Kernel
from measuring import CPU, noisy, run


def test_on_a_cpu_there_is_no_flush_spin_canary_or_idle_time_and_samples_loop_for_100_us() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None, device_type="cpu", resolution_ns=50.0)
    [out] = run(engine, {"a": Kernel(7 * US, host=0.0)}, regime="cpu", device=CPU).values()

    assert out.K == 15
    assert {entry[0] for entry in engine.journal} == {"a", "record", "wait"}
    assert out.t_host_ns is None
    assert (out.n, out.stop_reason) == (30, "ci")


def test_a_window_on_a_cpu_opens_with_an_untimed_span_that_warms_the_caches() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None)
    last = [""]

    def launcher(name: str) -> Callable[[int], None]:
        def launch(index: int) -> None:
            cold = last[0] != name
            last[0] = name
            engine.kernel(Kernel(4 * MS if cold else 2 * MS, host=0.0))

        return launch

    candidates = [Candidate(name, launcher(name), 2) for name in "ab"]
    out = measure(candidates, method_for("cpu", CPU, "normal"), Limits(), engine, lambda *_: None)

    for measurement in out.values():
        assert measurement.samples_ns == [pytest.approx(2 * MS, rel=1e-3)] * 30


def test_a_coarse_timer_asks_for_longer_samples_on_a_cpu() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None, resolution_ns=1 * US)
    [out] = run(engine, {"a": Kernel(100 * US, host=0.0)}, regime="cpu", device=CPU).values()

    assert out.K == 10  # 1000 steps of 1 us


def test_a_long_call_on_a_cpu_follows_the_stopping_rule_from_five_samples() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None)
    [out] = run(engine, {"a": Kernel(noisy(20 * MS, 0.5), host=0.0)}, regime="cpu", device=CPU).values()

    assert (out.n, out.stop_reason) == (20, "seconds")
    assert "hot" not in out.flags
