"""The CUDA engine against a CUDA that only keeps a clock: what it queues, where, and whose functions it calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fabench.device import Device
from fabench.measure import cuda_engine
from fabench.measure.cuda_engine import CudaEngine

GPU = Device("cuda", "fake", index=0, capability=(9, 0), l2_bytes=50 << 20)
GIB = 1 << 30
CYCLES_PER_NS = 2.0


class FakeCuda:
    """One stream whose clock moves only by spins; every call is written down."""

    def __init__(self) -> None:
        self.ns = 0.0
        self.journal: list[Any] = []

    def sleep(self, cycles: int) -> None:
        self.ns += 1_000 + cycles / CYCLES_PER_NS  # launching takes a microsecond
        self.journal.append(("spin", cycles))

    def event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent()


class FakeEvent:
    at = 0.0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake, empty = FakeCuda(), torch.empty

    def record(event: FakeEvent, stream: Any) -> None:
        event.at = fake.ns
        fake.journal.append(("record", stream))

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: fake.journal.append(("device", str(device))))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: fake.journal.append(("stream", stream)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 15 * GIB)
    monkeypatch.setattr(torch, "empty", lambda size, **more: empty(size, dtype=more["dtype"]))
    monkeypatch.setattr(cuda_engine, "Event", fake.event)
    monkeypatch.setattr(cuda_engine, "record_event", record)
    monkeypatch.setattr(cuda_engine, "wait_event", lambda event: None)
    monkeypatch.setattr(cuda_engine, "elapsed_ms", lambda start, end: (end.at - start.at) / 1e6)
    monkeypatch.setattr(cuda_engine, "spin_kernel", fake.sleep)
    monkeypatch.setattr(cuda_engine, "synchronize", lambda device: fake.journal.append(("sync", str(device))))
    return fake


def test_it_lives_on_a_stream_of_its_own_and_records_events_there(cuda: FakeCuda) -> None:
    engine = CudaEngine(GPU)
    engine.record(engine.event())

    assert cuda.journal[:2] == [("device", "cuda:0"), ("stream", "stream of cuda:0")]
    assert cuda.journal[-1] == ("record", "stream of cuda:0")


def test_a_spin_lasts_as_long_as_it_was_asked_to_whatever_a_launch_costs(cuda: FakeCuda) -> None:
    engine = CudaEngine(GPU)
    before = cuda.ns

    engine.spin(300e3)

    assert cuda.ns - before - 1_000 == pytest.approx(300e3)


def test_memory_that_the_allocator_holds_and_does_not_use_is_free_and_twice_the_L2_is_flushed(cuda: FakeCuda) -> None:
    engine = CudaEngine(GPU)

    assert engine.free_bytes() == 105 * GIB
    assert engine.flush_bytes == engine._flush.numel() == 100 << 20


def test_a_backend_that_replaces_events_and_clocks_in_their_modules_does_not_reach_it(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CudaEngine(GPU)
    for name in ("torch.cuda.Event", "torch.cuda.synchronize", "torch.cuda._sleep", "time.perf_counter_ns"):
        monkeypatch.setattr(name, lambda *_, **__: 0)

    start = engine.event()
    engine.record(start)
    engine.spin(1e6)
    engine.record(end := engine.event())
    engine.synchronize()

    assert engine.elapsed_ns(start, end) == pytest.approx(1_001_000)
    assert engine.now_ns() > 0
    assert cuda.journal[-1] == ("sync", "cuda:0")
