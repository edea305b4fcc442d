"""Real time on this machine: a busy wait is timed as long as it was."""

from __future__ import annotations

import time

import pytest
import torch

from fabench.device import Device
from fabench.measure.cpu_engine import CpuEngine, clone_output, gemm_on
from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, measure

CPU = Device("cpu", "here")


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize("milliseconds", [0.02, 2.0])
def test_a_busy_wait_is_timed_as_long_as_it_is(milliseconds: float) -> None:
    """The least sample is compared, and n is not: other processes can only add to a sample, and end a row early."""
    engine = CpuEngine(CPU)
    launch = lambda index: busy(milliseconds / 1e3)  # noqa: E731
    [out] = measure(
        [Candidate("busy", launch, 2)], method_for("cpu", CPU, "normal"), Limits(seconds=0.05), engine, lambda *_: None
    ).values()

    assert min(out.samples_ns) == pytest.approx(milliseconds * 1e6, rel=0.1)
    assert out.K * milliseconds >= 0.1
    assert out.n >= 5
    assert out.stop_reason in ("ci", "seconds")


def test_its_timer_is_finer_than_a_microsecond_and_its_canary_is_random() -> None:
    engine = CpuEngine(CPU)

    assert 0 < engine.resolution_ns < 1e4
    product = gemm_on(torch.device("cpu"), "fp32", 100)()
    assert product.shape == (100, 100)
    assert product.std() > 1
    assert engine.free_bytes() > 1 << 20


def test_a_clone_shares_nothing_with_its_original() -> None:
    original = (torch.zeros(2), [torch.ones(2)], "word")
    copy = clone_output(original)
    original[0].fill_(9)

    assert copy[0].tolist() == [0, 0]
    assert copy[1][0].tolist() == [1, 1]
    assert copy[2] == "word"


def test_a_cpu_cannot_capture_a_graph() -> None:
    with pytest.raises(RuntimeError, match="no graphs"):
        CpuEngine(CPU).capture(lambda: None)
