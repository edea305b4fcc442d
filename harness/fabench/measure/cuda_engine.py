"""A CUDA device: events, a spin kernel, an L2 flush and graphs, all on a stream of the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, sleep  # by name, as all of torch.cuda below: a backend may replace them in the module
from typing import Any, TypeVar

import torch

from fabench.device import Device
from fabench.measure.cpu_engine import clone_output, copy_on, gemm_on
from fabench.measure.engine import ColdState
from fabench.measure.rotation import flush_bytes

T = TypeVar("T")
Event, synchronize, spin_kernel = torch.cuda.Event, torch.cuda.synchronize, torch.cuda._sleep
record_event, wait_event, query_event = Event.record, Event.synchronize, Event.query
elapsed_ms = Event.elapsed_time
SPIN_TRIAL_CYCLES = (1_000_000, 3_000_000)
"""Two spins tell the time of a cycle without that of a launch."""


class CudaEngine:
    """`Engine` on one GPU. Making it puts this process on a stream that is not the default one, for good."""

    device_type = "cuda"
    asynchronous = True
    resolution_ns = 500.0
    """CUDA's documentation of cudaEventElapsedTime: a resolution of around 0.5 us."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._torch_device = torch.device(device.torch_name)
        torch.cuda.set_device(self._torch_device)
        self.stream = torch.cuda.Stream(self._torch_device)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(self.stream)
        self.l2_bytes = device.l2_bytes
        self.flush_bytes = flush_bytes(device.l2_bytes, self.free_bytes())
        self._flush = torch.empty(self.flush_bytes, dtype=torch.uint8, device=self._torch_device)
        self.gate_dtype: str | None = "bf16" if (device.capability or (0, 0)) >= (8, 0) else "fp16"
        self.cold = ColdState()
        self._cycles_per_ns = self._calibrate_spin()

    def _calibrate_spin(self) -> float:
        """Cycles of the spin kernel's clock in a nanosecond."""
        times = []
        for cycles in (SPIN_TRIAL_CYCLES[0], *SPIN_TRIAL_CYCLES):
            start, end = self.event(), self.event()
            self.record(start)
            sleep_cycles(cycles)
            self.record(end)
            self.wait(end)
            times.append(self.elapsed_ns(start, end))
        return (SPIN_TRIAL_CYCLES[1] - SPIN_TRIAL_CYCLES[0]) / max(times[2] - times[1], 1.0)

    def now_ns(self) -> int:
        """perf_counter_ns: monotonic, the same clock in all processes on Linux."""
        return perf_counter_ns()

    def sleep(self, seconds: float) -> None:
        """Leave the device idle."""
        sleep(seconds)

    def synchronize(self) -> None:
        """Device-wide: every stream of this process."""
        synchronize(self._torch_device)

    def flush(self) -> None:
        """Write a buffer larger than the L2 cache."""
        self._flush.zero_()

    def spin(self, ns: float) -> None:
        """A kernel that counts clock cycles; the clock may be slower now, which makes it longer."""
        sleep_cycles(max(1, int(ns * self._cycles_per_ns)))

    def event(self) -> torch.cuda.Event:
        """A timing event; waiting for it spins on the host."""
        return Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self, event: torch.cuda.Event) -> None:
        """On the engine's stream, whatever stream a backend may have left current."""
        record_event(event, self.stream)

    def done(self, event: torch.cuda.Event) -> bool:
        """True if the device has passed `event`."""
        return bool(query_event(event))  # type: ignore[no-untyped-call]

    def wait(self, event: torch.cuda.Event) -> None:
        """Wait for `event` alone."""
        wait_event(event)

    def elapsed_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """CUDA gives milliseconds."""
        return float(elapsed_ms(start, end)) * 1e6

    def capture(self, body: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture on the engine's stream: a backward pass runs where its forward ran, and so is captured too."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            result = body()
        return graph.replay, result

    def clone(self, output: Any) -> Any:
        """A copy of an output, tensors within tuples included."""
        return clone_output(output)

    def gemm(self, dtype: str, n: int) -> Callable[[], Any]:
        """A launch that multiplies two random n x n matrices."""
        return gemm_on(self._torch_device, dtype, n)

    def copy(self, nbytes: int) -> Callable[[], Any]:
        """A launch that copies `nbytes` within the device's memory."""
        return copy_on(self._torch_device, nbytes)

    def null(self) -> Callable[[], Any]:
        """The spin kernel with nothing to wait for."""
        return lambda: sleep_cycles(0)

    def free_bytes(self) -> int:
        """What the driver has free, and what PyTorch's allocator holds and does not use."""
        free, _ = torch.cuda.mem_get_info(self._torch_device)
        cached = torch.cuda.memory_reserved(self._torch_device) - torch.cuda.memory_allocated(self._torch_device)
        return free + cached


def sleep_cycles(cycles: int) -> None:
    """Queue PyTorch's spin kernel."""
    spin_kernel(cycles)  # type: ignore[no-untyped-call]
