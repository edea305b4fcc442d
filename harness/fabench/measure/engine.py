"""What measuring needs of a device: a host clock, a queue with events, and a few fixed pieces of work. No torch here.

`CudaEngine` and `CpuEngine` keep this contract on hardware; the tests' fake engine keeps it on a clock of its own,
which is how all scheduling is tested without a device. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fabench.device import Device

T = TypeVar("T")


@dataclass
class ColdState:
    """What is known of the card's cold state; it outlives a case, so it lives with the engine."""

    gate: Callable[[], Any] | None = None
    """One span of the canary that opens a window."""
    gate_ns: float | None = None
    """The canary's cold time; None until it was calibrated."""
    sync_ns: float | None = None
    """What a device-wide sync costs the host when there is nothing to wait for; None until it was measured."""
    rest_until_ns: int = 0
    """Host time before which the device must be left idle."""


class Engine(Protocol):
    """A device that runs queued work, and the host's view of it."""

    device_type: str
    asynchronous: bool
    """A launch returns before its work is done. If not, spin, leaks and streams do not exist."""
    resolution_ns: float
    """Step of the timer behind `elapsed_ns`."""
    flush_bytes: int
    l2_bytes: int | None
    gate_dtype: str | None
    """dtype of the canary that opens windows, None where windows are not gated."""
    cold: ColdState

    def now_ns(self) -> int:
        """The host's monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Leave the device idle."""

    def synchronize(self) -> None:
        """Wait until all work on the device is done, on whatever stream; raises what went wrong in it."""

    def flush(self) -> None:
        """Queue work that evicts the L2 cache."""

    def spin(self, ns: float) -> None:
        """Queue a busy wait of `ns`, while which the host queues what comes after it."""

    def event(self) -> Any:
        """A new event."""

    def record(self, event: Any) -> None:
        """Queue `event`."""

    def done(self, event: Any) -> bool:
        """True if the device has passed `event`."""

    def wait(self, event: Any) -> None:
        """Wait until the device has passed `event`, and for nothing else."""

    def elapsed_ns(self, start: Any, end: Any) -> float:
        """Time between two events that were passed."""

    def capture(self, body: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture what `body` queues as a graph; returns its replay, and body's result, which replays rewrite."""

    def clone(self, output: Any) -> Any:
        """A copy of an output, tensors within tuples included."""

    def gemm(self, dtype: str, n: int) -> Callable[[], Any]:
        """A launch that multiplies two random n x n matrices."""

    def copy(self, nbytes: int) -> Callable[[], Any]:
        """A launch that copies `nbytes` within the device's memory."""

    def null(self) -> Callable[[], Any]:
        """The least launch there is."""

    def free_bytes(self) -> int:
        """Memory that new tensors can take."""


def engine_for(device: Device) -> Engine:
    """The engine for `device`.

    On a GPU it makes a stream of its own the current one for the rest of the process, so that work a backend launches
    on the default stream is work on another stream, and is seen.
    """
    if device.type == "cuda":
        from fabench.measure.cuda_engine import CudaEngine

        return CudaEngine(device)
    from fabench.measure.cpu_engine import CpuEngine

    return CpuEngine(device)
