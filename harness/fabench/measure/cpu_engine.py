"""The CPU as a device: every launch is done when it returns, and events are readings of the host's clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, sleep  # by name: a backend may replace them in the module
from typing import Any, TypeVar

import torch

from fabench.device import Device
from fabench.dtypes import DTYPES
from fabench.measure.engine import ColdState

T = TypeVar("T")


class CpuEvent:
    """A moment on the host's clock."""

    def __init__(self) -> None:
        self.ns = 0


class CpuEngine:
    """`Engine` on the host: `perf_counter_ns`, no queue, no flush."""

    device_type = "cpu"
    asynchronous = False
    flush_bytes = 0
    gate_dtype: str | None = None

    def __init__(self, device: Device) -> None:
        self.device = device
        self.l2_bytes = device.l2_bytes
        self.cold = ColdState()
        self.resolution_ns = timer_resolution_ns()

    def now_ns(self) -> int:
        """perf_counter_ns: monotonic, the same clock in all processes on Linux."""
        return perf_counter_ns()

    def sleep(self, seconds: float) -> None:
        """Yield the core."""
        sleep(seconds)

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def flush(self) -> None:
        """Caches are left as they are: the `cpu` regime is warm."""

    def spin(self, ns: float) -> None:
        """There is no queue to fill."""

    def event(self) -> CpuEvent:
        """A moment yet to come."""
        return CpuEvent()

    def record(self, event: CpuEvent) -> None:
        """Read the clock."""
        event.ns = perf_counter_ns()

    def done(self, event: CpuEvent) -> bool:
        """Always: the host is the device."""
        return True

    def wait(self, event: CpuEvent) -> None:
        """Nothing to wait for."""

    def elapsed_ns(self, start: CpuEvent, end: CpuEvent) -> float:
        """The difference of two readings."""
        return float(end.ns - start.ns)

    def capture(self, body: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """A CPU has no graphs; raises RuntimeError."""
        raise RuntimeError("a CPU has no graphs to capture")

    def clone(self, output: Any) -> Any:
        """A copy of an output, tensors within tuples included."""
        return clone_output(output)

    def gemm(self, dtype: str, n: int) -> Callable[[], Any]:
        """A launch that multiplies two random n x n matrices."""
        return gemm_on(torch.device("cpu"), dtype, n)

    def copy(self, nbytes: int) -> Callable[[], Any]:
        """A launch that copies `nbytes` between two buffers."""
        return copy_on(torch.device("cpu"), nbytes)

    def null(self) -> Callable[[], Any]:
        """PyTorch's dispatch of an operation on one number."""
        return torch.zeros(1).zero_

    def free_bytes(self) -> int:
        """Memory the kernel says is available, or what the device facts say where it does not."""
        try:
            with open("/proc/meminfo") as lines:
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        except (OSError, StopIteration):
            return self.device.free_bytes


def timer_resolution_ns(readings: int = 2000) -> float:
    """The least step seen between readings of perf_counter_ns."""
    steps, last = [], perf_counter_ns()
    for _ in range(readings):
        now = perf_counter_ns()
        if now > last:
            steps.append(now - last)
        last = now
    return float(min(steps, default=1))


def clone_output(output: Any) -> Any:
    """A detached copy of an output, tensors within tuples and lists included; anything else is returned as it is."""
    if isinstance(output, torch.Tensor):
        return output.detach().clone()
    if isinstance(output, tuple | list):
        return tuple(clone_output(part) for part in output)
    return output


def gemm_on(device: torch.device, dtype: str, n: int) -> Callable[[], Any]:
    """C = A·B with N(0, 1) entries: zeros would draw less power and run faster."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(min(n, 1024), min(n, 1024), generator=generator).to(getattr(torch, DTYPES[dtype].torch_name))
    repeat = -(-n // block.shape[0])
    a = block.to(device).repeat(repeat, repeat)[:n, :n].contiguous()
    b, c = a.clone(), torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def copy_on(device: torch.device, nbytes: int) -> Callable[[], Any]:
    """target <- source, both of `nbytes`."""
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)
