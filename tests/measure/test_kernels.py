"""What a profile says: names in order, work on other streams, spans, and fallbacks."""

from __future__ import annotations

import pytest

from fabench.device import Device
from fabench.measure.cpu_engine import CpuEngine
from fabench.measure.kernels import Activity, KernelReport, profile_kernels, report_of, short_name

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>(Flash_fwd_params)"


def work(*activities: tuple[str, int, int, int]) -> list[Activity]:
    return [Activity(SPIN, 7, 0, 10), *(Activity(*a) for a in activities), Activity(SPIN, 7, 1000, 1010)]


def test_names_come_once_each_in_the_order_of_their_first_launch() -> None:
    report = report_of(work(("b", 7, 300, 400), ("a", 7, 100, 200), ("b", 7, 500, 600), ("Memset (Device)", 7, 50, 60)))

    assert report is not None
    assert report.names == ["a", "b"]
    assert report.other_streams == []
    assert report.span_ns == 550
    assert report.busy_ns == 310


def test_kernels_copies_and_fills_on_another_stream_are_told() -> None:
    report = report_of(work(("a", 7, 100, 200), ("sneaky", 20, 100, 300), ("Memcpy DtoD", 21, 100, 110)))

    assert report is not None
    assert report.other_streams == ["sneaky", "Memcpy DtoD"]


def test_a_profile_without_its_own_markers_is_no_profile() -> None:
    assert report_of([]) is None
    assert report_of([Activity("a", 7, 0, 1)]) is None


def test_a_call_that_runs_nothing_has_an_empty_report() -> None:
    assert report_of(work()) == KernelReport(names=[], other_streams=[], span_ns=0, busy_ns=0)


def test_a_pattern_is_searched_for_in_every_name() -> None:
    report = KernelReport(["void at::native::elementwise_kernel<...>", FLASH], [], 1, 1)

    assert report.matches(["flash_fwd_(splitkv_)?kernel"])
    assert report.fallback(["cudnn", "flash_fwd"]) is None
    assert report.fallback([]) is None


def test_no_match_is_a_fallback_with_what_ran() -> None:
    report = KernelReport(["void gemm<float>(int)", "void softmax(float*)"], [], 1, 1)

    message = report.fallback(["flash_fwd", "cudnn"])
    assert message == "fallback: no kernel is named like flash_fwd or cudnn; gemm<float>(int), softmax(float*) ran"
    assert KernelReport([], [], 0, 0).fallback(["x"]) == "fallback: no kernel is named like x; no kernel at all ran"


def test_long_names_are_cut() -> None:
    assert short_name(FLASH) == "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>(Fla…"
    assert len(short_name(FLASH)) == 60


def test_a_cpu_has_no_kernels() -> None:
    assert profile_kernels(lambda: pytest.fail("not called"), CpuEngine(Device("cpu", "here"))) is None
