"""Telemetry: summaries of polls, flags, whose processes are whose, and every way NVML can be missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fabench.device import Device
from fabench.measure.telemetry import Poll, Poller, Reader, family, handle_of, others, summary

GPU = Device("cuda", "fake")


class FakeNvml:
    """The calls `Reader` makes, with answers that a test can change; a missing answer is NVML's 'not supported'."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    class NVMLError(Exception):
        pass

    class NVMLError_FunctionNotFound(NVMLError):  # noqa: N801
        pass

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "clock": 1980,
            "power": 400_000,
            "temperature": 50,
            "energy": 1_000,
            "reasons": 0,
            "processes": [],
            "violation": 0,
            **answers,
        }
        self.open = 0

    def _answer(self, name: str) -> Any:
        if (value := self.answers[name]) is None:
            raise self.NVMLError
        return value

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        return f"uuid {uuid}"

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> Any:
        return self._answer("clock")

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> Any:
        return self._answer("power")

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> Any:
        return self._answer("temperature")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> Any:
        return self._answer("energy")

    def nvmlDeviceGetViolationStatus(self, handle: Any, policy: int) -> Any:
        return SimpleNamespace(violationTime=self._answer("violation"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> Any:
        return self._answer("reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:
        return [SimpleNamespace(pid=pid) for pid in self._answer("processes")]


def poll(at: float, **more: Any) -> Poll:
    return Poll(at, **{"sm_clock_mhz": 1980.0, "power_w": 400.0, "reasons": 0, **more})


def test_a_summary_has_means_extremes_and_no_flags_on_a_quiet_card() -> None:
    stretch = [
        poll(0.0, sm_clock_mhz=1900.0, temperature_c=50.0, energy_j=100.0),
        poll(0.1, power_w=600.0, temperature_c=60.0, energy_j=150.0),
    ]
    telemetry, flags = summary([stretch])

    assert (telemetry.sm_clock_mhz_mean, telemetry.sm_clock_mhz_min) == (1940.0, 1900.0)
    assert telemetry.power_w_mean == 500.0
    assert telemetry.temperature_c_max == 60.0
    assert telemetry.energy_j == 50.0
    assert (telemetry.event_reasons, telemetry.polls) == (0, 2)
    assert flags == set()


@pytest.mark.parametrize("bit", [0x8, 0x20, 0x40, 0x80])
def test_a_hard_slowdown_in_any_poll_flags_the_row_throttled(bit: int) -> None:
    telemetry, flags = summary([[poll(0.0), poll(0.1, reasons=bit | 0x4), poll(0.2)]])

    assert flags == {"throttled"}
    assert telemetry.event_reasons == bit | 0x4


def test_the_power_cap_and_idling_are_legal_states() -> None:
    assert summary([[poll(0.0, reasons=0x4), poll(0.1, reasons=0x1)]])[1] == set()


def test_another_process_on_the_card_flags_the_row() -> None:
    assert summary([[poll(0.0), poll(0.1, shared=True)]])[1] == {"shared_gpu"}


def test_no_polls_or_empty_ones_are_no_telemetry() -> None:
    for stretches in ([], [[]], [[Poll(0.0, temperature_c=50.0)]]):
        telemetry, flags = summary(stretches)
        assert flags == {"no_telemetry"}
        assert telemetry.polls == 0


def test_violations_add_up_over_stretches_and_energy_is_told_of_one_stretch_only() -> None:
    first = [poll(0.0, power_violation_s=1.0, energy_j=0.0), poll(0.1, power_violation_s=1.5, energy_j=9.0)]
    second = [poll(1.0, power_violation_s=7.0, energy_j=90.0), poll(1.1, power_violation_s=7.25, energy_j=99.0)]
    telemetry, _ = summary([first, second])

    assert telemetry.power_violation_s == pytest.approx(0.75)
    assert telemetry.energy_j is None
    assert telemetry.thermal_violation_s is None


def test_a_poller_reads_the_card_and_gives_each_row_the_polls_near_its_windows() -> None:
    nvml = FakeNvml()
    with Poller(GPU, period_s=0.001, nvml=nvml) as poller:  # type: ignore[arg-type]
        deadline = time.monotonic() + 10
        while len(poller._polls) < 5 and time.monotonic() < deadline:
            time.sleep(0.001)
    telemetry, flags = poller.during([(poller._polls[1].at, poller._polls[3].at)])

    assert telemetry is not None
    assert telemetry.sm_clock_mhz_mean == 1980
    assert telemetry.power_w_mean == 400
    assert 3 <= telemetry.polls <= 5
    assert flags == set()
    assert poller.during([(0.0, 1.0)])[1] == {"no_telemetry"}
    assert nvml.open == 0


def test_what_a_card_does_not_know_is_null_and_not_an_error() -> None:
    nvml = FakeNvml(energy=None, violation=None, processes=None, reasons=None)
    reader = Reader.open(0, nvml)
    assert reader is not None
    seen = reader.poll()

    assert seen.sm_clock_mhz == 1980
    assert (seen.energy_j, seen.power_violation_s, seen.reasons, seen.shared) == (None, None, None, False)


def test_without_nvml_a_gpu_row_is_flagged_and_a_cpu_row_is_not() -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError

    with Poller(GPU, nvml=Broken()) as gpu, Poller(Device("cpu", "x"), nvml=FakeNvml()) as cpu:  # type: ignore[arg-type]
        assert gpu.during([(0.0, 1.0)])[1] == {"no_telemetry"}
        assert cpu.during([(0.0, 1.0)]) == (None, set())
        assert cpu._thread is None


def test_the_handle_follows_cuda_visible_devices() -> None:
    nvml = FakeNvml()

    assert handle_of(nvml, 1, None) == "index 1"
    assert handle_of(nvml, 1, "3, 5") == "index 5"
    assert handle_of(nvml, 0, "GPU-abc") == "uuid GPU-abc"


def test_our_own_workers_are_not_other_processes() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        own = family(os.getpid())
        assert {os.getpid(), child.pid} <= own
        assert not others([child.pid], own)
        assert others([child.pid, 1], own)
    finally:
        child.communicate(b"\n")


def test_process_numbers_of_another_namespace_are_counted_instead() -> None:
    unknown = 2**22 + 5  # above the largest pid Linux gives out

    assert not others([unknown], {os.getpid()})
    assert others([unknown, unknown + 1], {os.getpid()})
    assert not others([], {os.getpid()})


def test_bindings_that_are_too_old_to_know_a_question_leave_that_field_unknown() -> None:
    class Old(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption"):
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
            return 4

    poll = Reader(Old(), "handle").poll()

    assert (poll.reasons, poll.energy_j, poll.sm_clock_mhz) == (4, None, 1980)
