"""A device on a clock of its own: kernels last as long as a test says, and everything that happens is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fabench.measure.engine import ColdState

T = TypeVar("T")
US, MS = 1e3, 1e6


@dataclass
class FakeEvent:
    at: float | None = None


@dataclass
class Kernel:
    """A call: `device` ns of work on the current stream, `host` ns to queue it.

    `side` is work on another stream; `syncs` makes the call wait for the device before it returns.
    """

    device: float | Callable[[], float]
    host: float | Callable[[], float] = 5 * US
    side: float = 0.0
    syncs: bool = False


@dataclass
class FakeEngine:
    """`Engine` without hardware: a host clock, one stream, and a side stream nobody records events on."""

    asynchronous: bool = True
    gate_dtype: str | None = "bf16"
    device_type: str = "cuda"
    resolution_ns: float = 500.0
    flush_bytes: int = 100 << 20
    l2_bytes: int | None = 50 << 20
    gemm_ns: Callable[[FakeEngine], float] = lambda engine: 300 * US
    """What a span of any canary takes."""
    flush_ns: float = 30 * US
    null_ns: float = 2 * US
    null_host_ns: float = 1 * US
    memory: int = 100 << 30
    host: float = 0.0
    stream: float = 0.0
    """When the current stream will have done all that is queued."""
    side: float = 0.0
    cold: ColdState = field(default_factory=ColdState)
    work_ns: float = 0.0
    """Device time queued so far."""
    journal: list[tuple[Any, ...]] = field(default_factory=list)
    lost: Exception | None = None
    """Raised by every sync once set: a sticky device error."""
    _captured: list[Kernel] | None = None

    def kernel(self, kernel: Kernel, name: str = "kernel", index: int | None = None) -> None:
        """Queue a kernel, as a backend's call would."""
        if self._captured is not None:
            if kernel.syncs:
                raise RuntimeError("operation not permitted when stream is capturing")
            self._captured.append(kernel)
            self.host += kernel.host() if callable(kernel.host) else kernel.host
            return
        self.host += kernel.host() if callable(kernel.host) else kernel.host
        if kernel.syncs:
            self.host = max(self.host, self.stream)
        self._queue(kernel.device() if callable(kernel.device) else kernel.device)
        if kernel.side:
            self.side = max(self.side, self.host) + kernel.side
        if kernel.syncs:
            self.host = max(self.host, self.stream)
        self.journal.append((name, index))

    def _queue(self, ns: float) -> None:
        self.stream = max(self.stream, self.host) + ns
        self.work_ns += ns
        if not self.asynchronous:
            self.host = self.stream

    def now_ns(self) -> int:
        return int(self.host)

    def sleep(self, seconds: float) -> None:
        self.journal.append(("sleep", seconds, self.work_ns))
        self.host += seconds * 1e9

    def synchronize(self) -> None:
        if self.lost is not None:
            raise self.lost
        self.host = max(self.host, self.stream, self.side)

    def flush(self) -> None:
        self.journal.append(("flush",))
        self.host += US
        self._queue(self.flush_ns)

    def spin(self, ns: float) -> None:
        self.journal.append(("spin", ns))
        self.host += US
        self._queue(ns)

    def event(self) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent) -> None:
        self.host += 0.5 * US
        event.at = max(self.stream, self.host)
        self.journal.append(("record", event))

    def done(self, event: FakeEvent) -> bool:
        assert event.at is not None
        return event.at <= self.host

    def wait(self, event: FakeEvent) -> None:
        assert event.at is not None
        self.journal.append(("wait",))
        self.host = max(self.host, event.at)

    def elapsed_ns(self, start: FakeEvent, end: FakeEvent) -> float:
        assert start.at is not None
        assert end.at is not None
        return end.at - start.at

    def capture(self, body: Callable[[], T]) -> tuple[Callable[[], None], T]:
        self._captured = kernels = []
        try:
            result = body()
        finally:
            self._captured = None

        def replay() -> None:
            self.journal.append(("replay", len(kernels)))
            self.host += 10 * US
            for kernel in kernels:
                self._queue(kernel.device() if callable(kernel.device) else kernel.device)

        return replay, result

    def clone(self, output: Any) -> Any:
        return ("copy of", output)

    def gemm(self, dtype: str, n: int) -> Callable[[], Any]:
        return lambda: self._probe(f"gemm {dtype} {n}", self.gemm_ns(self))

    def copy(self, nbytes: int) -> Callable[[], Any]:
        return lambda: self._probe(f"copy {nbytes}", nbytes / 2e3)  # 2 TB/s each way

    def null(self) -> Callable[[], Any]:
        return lambda: self._probe("null", self.null_ns, self.null_host_ns)

    def _probe(self, name: str, ns: float, host_ns: float = US) -> None:
        self.journal.append((name,))
        self.host += host_ns
        self._queue(ns)

    def free_bytes(self) -> int:
        return self.memory

    def launcher(self, name: str, kernel: Kernel) -> Callable[[int], Any]:
        """`launch(i)` for a candidate that runs `kernel`."""

        def launch(index: int) -> Any:
            self.kernel(kernel, name, index)
            return f"{name} on {index}"

        return launch
