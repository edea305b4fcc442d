"""The canaries: what is timed in each regime, and the rates that follow."""

from __future__ import annotations

import pytest

from fabench.device import Device
from fabench.measure.canary import measure_canary
from fabench.measure.cpu_engine import CpuEngine
from fake_engine import MS, US, FakeEngine


def test_on_a_gpu_it_times_large_gemms_a_1_gib_copy_and_empty_kernels() -> None:
    engine = FakeEngine(gemm_ns=lambda e: 1.5 * MS)
    reading = measure_canary(engine, ["bf16", "fp32", "bf16"], "burst")

    assert reading.gemm_flops["bf16"] == pytest.approx(2 * 8192**3 / 1.5e-3)
    assert reading.gemm_flops["fp32"] == pytest.approx(2 * 4096**3 / 1.5e-3)
    assert reading.copy_bandwidth == pytest.approx(4e12)
    assert reading.null_ns == pytest.approx(2 * US, rel=0.02)
    assert reading.to_json()["regime"] == "burst"


def test_in_bursts_it_rests_as_rows_do() -> None:
    engine = FakeEngine(gemm_ns=lambda e: 1.5 * MS)
    measure_canary(engine, ["bf16"], "burst")

    rests = [entry[1] for entry in engine.journal if entry[0] == "sleep"]
    assert sum(rest > 0.03 for rest in rests) >= 2 + 3  # windows of the GEMM and of the calibration


def test_sustained_it_runs_a_second_before_what_counts() -> None:
    engine = FakeEngine(null_host_ns=20 * US)
    engine.gemm_ns = lambda e: 1.5 * MS if e.stream < 0.8e9 else 1.8 * MS
    reading = measure_canary(engine, ["bf16"], "sustained")

    assert reading.null_ns == pytest.approx(2 * US, rel=0.02)  # the device's floor, not the host's
    assert reading.gemm_flops["bf16"] == pytest.approx(2 * 8192**3 / 1.8e-3)
    assert not any(entry[0] == "sleep" for entry in engine.journal)


def test_a_small_card_copies_less() -> None:
    engine = FakeEngine(memory=4 << 30)
    measure_canary(engine, [], "burst")

    assert any(entry[0] == f"copy {int((4 << 30) * 0.05)}" for entry in engine.journal)


def test_a_cpu_has_a_canary_too() -> None:
    reading = measure_canary(CpuEngine(Device("cpu", "here", free_bytes=1 << 32)), ["fp32"], "cpu")

    assert 1e8 < reading.gemm_flops["fp32"] < 1e14
    assert 1e8 < reading.copy_bandwidth < 1e13
    assert 0 < reading.null_ns < 1e6
