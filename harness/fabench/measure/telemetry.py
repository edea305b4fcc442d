"""What the GPU did while rows were measured, polled through NVML from the process that owns no CUDA context.

Nothing on the card is ever set. Where NVML is absent, refused or silent (no driver, containers, MIG), the rows say
`no_telemetry` and the run goes on. A CPU has no telemetry and needs no flag.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fabench.device import Device
from fabench.names import Flag
from fabench.records import Telemetry

PERIOD_S = 0.03
HARD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80
"""HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrake. SwPowerCap (0x4) is a legal steady state."""
OTHERS_EVERY_S = 1.0
"""How often other processes on the GPU are looked for."""


@dataclass(frozen=True)
class Poll:
    """One reading; None where the card does not say."""

    at: float
    """Seconds on the machine's monotonic clock."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    power_violation_s: float | None = None
    thermal_violation_s: float | None = None
    reasons: int | None = None
    """Clock event reasons, NVML's bits."""
    shared: bool = False
    """Another process had a compute context on the GPU."""


class Poller:
    """A thread that polls one GPU from `__enter__` to `__exit__`."""

    def __init__(self, device: Device, period_s: float = PERIOD_S, nvml: ModuleType | None = None) -> None:
        self.device, self.period_s = device, period_s
        self._given = nvml
        self._polls: list[Poll] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Poller:
        """Start polling, if this is a GPU that NVML knows."""
        if self.device.type == "cuda" and (reader := Reader.open(self.device.index, self._given)) is not None:
            self._thread = threading.Thread(target=self._run, args=(reader,), name="telemetry", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, reader: Reader) -> None:
        try:
            while not self._stop.wait(self.period_s):
                self._polls.append(reader.poll())
        finally:
            reader.close()

    def during(self, spans: Sequence[tuple[float, float]]) -> tuple[Telemetry | None, set[Flag]]:
        """Telemetry of some stretches of time (start and end on the monotonic clock), and the flags it asks for.

        A window is shorter than a polling period, so a poll within a period of it counts. On a CPU: None, no flag.
        """
        if self.device.type != "cuda":
            return None, set()
        polls = list(self._polls)
        times = [poll.at for poll in polls]
        stretches = [
            polls[bisect_left(times, start - self.period_s) : bisect_right(times, end + self.period_s)]
            for start, end in spans
        ]
        return summary(stretches)


def summary(stretches: Sequence[Sequence[Poll]]) -> tuple[Telemetry, set[Flag]]:
    """Means and extremes over some stretches of polls, and the flags they ask for.

    Those are `throttled`, `shared_gpu` and `no_telemetry`. Energy is told only of a single stretch: the counter is too
    coarse for windows of a few milliseconds.
    """
    polls = list({poll.at: poll for stretch in stretches for poll in stretch}.values())
    if not any(poll.sm_clock_mhz is not None or poll.power_w is not None for poll in polls):
        return Telemetry(polls=0), {"no_telemetry"}
    clocks = _known(poll.sm_clock_mhz for poll in polls)
    seen = [poll.reasons for poll in polls if poll.reasons is not None]
    reasons = functools.reduce(operator.or_, seen) if seen else None
    flags: set[Flag] = set()
    if (reasons or 0) & HARD_THROTTLE:
        flags.add("throttled")
    if any(poll.shared for poll in polls):
        flags.add("shared_gpu")
    telemetry = Telemetry(
        sm_clock_mhz_mean=_mean(clocks),
        sm_clock_mhz_min=min(clocks, default=None),
        memory_clock_mhz_mean=_mean(_known(poll.memory_clock_mhz for poll in polls)),
        power_w_mean=_mean(_known(poll.power_w for poll in polls)),
        temperature_c_max=max(_known(poll.temperature_c for poll in polls), default=None),
        energy_j=_growth(stretches, lambda poll: poll.energy_j) if len(stretches) == 1 else None,
        power_violation_s=_growth(stretches, lambda poll: poll.power_violation_s),
        thermal_violation_s=_growth(stretches, lambda poll: poll.thermal_violation_s),
        event_reasons=reasons,
        polls=len(polls),
    )
    return telemetry, flags


def _growth(stretches: Sequence[Sequence[Poll]], counter: Callable[[Poll], float | None]) -> float | None:
    """By how much a counter grew within the stretches; None if none of them has two readings, or it was set back."""
    readings = [_known(counter(poll) for poll in stretch) for stretch in stretches]
    grown = [values[-1] - values[0] for values in readings if len(values) > 1]
    return sum(grown) if grown and min(grown) >= 0 else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Reader:
    """Reads one GPU through NVML; what a card does not know is None, not an error."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._looked, self._shared = -OTHERS_EVERY_S, False

    @classmethod
    def open(cls, index: int, nvml: Any = None) -> Reader | None:
        """A reader of CUDA device `index`, None if NVML cannot be used or does not know it."""
        try:
            nvml = importlib.import_module("pynvml") if nvml is None else nvml
            nvml.nvmlInit()
            return cls(nvml, handle_of(nvml, index, os.environ.get("CUDA_VISIBLE_DEVICES")))
        except Exception:  # the library or the driver may be missing, mismatched, or hidden from this container
            return None

    def close(self) -> None:
        """Let go of NVML."""
        with contextlib.suppress(Exception):
            self.nvml.nvmlShutdown()

    def poll(self) -> Poll:
        """One reading."""
        n, h = self.nvml, self.handle
        now = time.monotonic()
        if now - self._looked >= OTHERS_EVERY_S:
            self._looked, self._shared = now, self._is_shared()
        return Poll(
            at=now,
            sm_clock_mhz=self._ask(lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            power_w=self._ask(lambda: n.nvmlDeviceGetPowerUsage(h) / 1e3),
            temperature_c=self._ask(lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            energy_j=self._ask(lambda: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3),
            power_violation_s=self._ask(lambda: self._violation_s(n.NVML_PERF_POLICY_POWER)),
            thermal_violation_s=self._ask(lambda: self._violation_s(n.NVML_PERF_POLICY_THERMAL)),
            reasons=self._ask(self._reasons),
            shared=self._shared,
        )

    def _violation_s(self, policy: int) -> float:
        return float(self.nvml.nvmlDeviceGetViolationStatus(self.handle, policy).violationTime) / 1e9

    def _reasons(self) -> int:
        """Under its new name, or the one that drivers and bindings before 535 know."""
        try:
            return int(self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle))
        except (self.nvml.NVMLError, AttributeError):
            return int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, None if the card does not say, or these bindings cannot ask."""
        try:
            return question()
        except (self.nvml.NVMLError, AttributeError):
            return None

    def _is_shared(self) -> bool:
        running = self._ask(lambda: self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        return running is not None and others([process.pid for process in running], family(os.getpid()))


def handle_of(nvml: Any, index: int, visible: str | None) -> Any:
    """NVML's handle of CUDA device `index` under CUDA_VISIBLE_DEVICES: CUDA numbers only the devices listed there.

    Without a list, NVML's order (by PCI bus) is taken for CUDA's, which it is on machines with GPUs of one model.
    """
    listed = [entry.strip() for entry in visible.split(",")] if visible else []
    if not listed:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    entry = listed[index]
    if entry.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    return nvml.nvmlDeviceGetHandleByUUID(entry)


def others(running: Sequence[int], own: set[int]) -> bool:
    """True if `running` (processes with a compute context) holds one that is none of `own`.

    In a container NVML may name processes by numbers that mean nothing here: then none of them is ours, and there is
    another only if there are more than the one worker that a run has on a GPU.
    """
    strangers = [pid for pid in running if pid not in own]
    if len(strangers) == len(running):
        return len(running) > 1 or any(Path(f"/proc/{pid}").exists() for pid in running)
    return bool(strangers)


def family(pid: int) -> set[int]:
    """`pid` and everything that descends from it, as /proc has it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()  # the name before it may hold anything
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, frontier = {pid}, [pid]
    while frontier:
        fresh = [child for child in children.get(frontier.pop(), ()) if child not in found]
        found.update(fresh)
        frontier += fresh
    return found
