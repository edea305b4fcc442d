"""Which kernels a call really ran, and on which stream: in a profiler pass of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fabench.measure.engine import Engine

MARKER = "spin_kernel"
"""Name of the kernel behind `CudaEngine.spin`, which brackets the call and so shows the current stream's id."""
NOT_KERNELS = ("Memcpy", "Memset")
TRIES = 2
"""The first session of a process can come back empty."""


@dataclass(frozen=True)
class Activity:
    """One piece of device work as the profiler saw it."""

    name: str
    stream: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class KernelReport:
    """What one call ran on the device."""

    names: list[str]
    """Kernels by name, in the order of their first launch."""
    other_streams: list[str]
    """Kernels, copies and fills that ran on another stream than the call's."""
    span_ns: int
    """From the start of the first to the end of the last."""
    busy_ns: int
    """Their durations added up."""

    def matches(self, patterns: Iterable[str]) -> bool:
        """True if one of the regular expressions is found in one of the names."""
        return any(re.search(pattern, name) for pattern in patterns for name in self.names)

    def fallback(self, patterns: Sequence[str]) -> str | None:
        """Why this is not the kernel the backend declares, or None if it is (or declares none)."""
        if not patterns or self.matches(patterns):
            return None
        got = ", ".join(short_name(name) for name in self.names[:4]) or "no kernel at all"
        return f"fallback: no kernel is named like {' or '.join(patterns)}; {got} ran"


def profile_kernels(call: Callable[[], Any], engine: Engine) -> KernelReport | None:
    """Profile one call; None on a CPU, and where the profiler sees not even its own markers (no CUPTI, no rights)."""
    if engine.device_type != "cuda":
        return None
    for _ in range(TRIES):
        if (report := report_of(_profile(call, engine))) is not None:
            return report
    return None


def _profile(call: Callable[[], Any], engine: Engine) -> list[Activity]:
    from torch.autograd.profiler import profile  # what torch.profiler wraps; see CpuMeter in memory.py

    engine.synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True, acc_events=True) as profiler:
        engine.spin(1e3)
        call()
        engine.spin(1e3)
        engine.synchronize()
    recorded = profiler.kineto_results.events()
    return [
        Activity(e.name(), e.device_resource_id(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in recorded
        if e.device_type().name == "CUDA" and not e.is_user_annotation() and e.duration_ns() > 0
    ]


def report_of(activities: Iterable[Activity]) -> KernelReport | None:
    """The report of what was profiled between two markers; None if the markers themselves are missing."""
    ordered = sorted(activities, key=lambda activity: activity.start_ns)
    markers = [a for a in ordered if MARKER in a.name]
    if not markers:
        return None
    stream = markers[0].stream
    work = [a for a in ordered if MARKER not in a.name]
    kernels = [a.name for a in work if not a.name.startswith(NOT_KERNELS)]
    return KernelReport(
        names=list(dict.fromkeys(kernels)),
        other_streams=list(dict.fromkeys(a.name for a in work if a.stream != stream)),
        span_ns=max(a.end_ns for a in work) - work[0].start_ns if work else 0,
        busy_ns=sum(a.end_ns - a.start_ns for a in work),
    )


def short_name(name: str, length: int = 60) -> str:
    """A kernel's name for messages: without its return type and arguments, cut to a length."""
    name = re.sub(r"^void\s+", "", name)
    return name if len(name) <= length else name[: length - 1] + "…"
