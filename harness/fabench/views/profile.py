"""What `fabench profile` prints: kernels as counted, and the bytes they moved beside the model's."""

from __future__ import annotations

from collections.abc import Sequence

from fabench.explain import Explanation
from fabench.measure.kernels import short_name
from fabench.profiling.kernel import Kernel, Profile, combined
from fabench.text import bytes_text, counted
from fabench.views.render import plain_table, wrapped
from fabench.views.values import significant

NAME_LENGTH = 48
LEAST_SHARE = 0.002
"""Kernels below this share of the call's time share a line."""


def render(profiles: Sequence[Profile], explanation: Explanation, width: int | None = None) -> str:
    """A table of kernels a backend, then DRAM bytes of all beside the model where counters were read."""
    head = f"{wrapped(explanation.case.label(), width)}\n{explanation.gpu.name}"
    parts = [head, *(_kernels(profile, width) for profile in profiles)]
    if any(profile.dram_bytes is not None for profile in profiles):
        parts += [_models(explanation, width), _measured(profiles, explanation, width)]
    return "\n\n".join(parts)


def _kernels(profile: Profile, width: int | None) -> str:
    title = f"{profile.backend}: counted by ncu" if profile.tool == "ncu" else f"{profile.backend}: torch's profiler"
    note = f"\n{wrapped(profile.note, width)}" if profile.note else ""
    if (total := profile.total) is None:
        return f"{title}{note}\nno kernel was seen"
    kernels = [*_worth_a_line(profile), *([total] if len(profile.kernels) > 1 else [])]
    if profile.tool == "torch":
        rows = [[short_name(k.name, NAME_LENGTH), str(k.launches), _us(k)] for k in kernels]
        return f"{title}{note}\n\n{plain_table(['kernel', 'launches', 'us'], rows, width)}"
    names = ["kernel", "launches", "us", "DRAM read", "written", "L2 hit", "tensor", "occupancy", "regs", "shared"]
    return f"{title}{note}\n\n{plain_table(names, [_counted(kernel) for kernel in kernels], width)}"


def _worth_a_line(profile: Profile) -> list[Kernel]:
    """The kernels that take a share of the time worth a line; the others as one."""
    total = sum(kernel.time_ns for kernel in profile.kernels)
    long = [kernel for kernel in profile.kernels if kernel.time_ns >= LEAST_SHARE * total]
    short = [kernel for kernel in profile.kernels if kernel.time_ns < LEAST_SHARE * total]
    name = counted(len(short), "other")
    return [*long, *([combined(name, short)] if short else [])]


def _counted(kernel: Kernel) -> list[str]:
    return [
        short_name(kernel.name, NAME_LENGTH),
        str(kernel.launches),
        _us(kernel),
        _gb(kernel.dram_read_bytes),
        _gb(kernel.dram_written_bytes),
        _share(kernel.l2_hit),
        _share(kernel.tensor),
        _share(kernel.occupancy),
        "-" if kernel.registers is None else str(kernel.registers),
        "-" if kernel.shared_bytes is None else bytes_text(kernel.shared_bytes),
    ]


def _models(explanation: Explanation, width: int | None) -> str:
    rows = [
        [traffic.algorithm, _gb(traffic.read_bytes), _gb(traffic.written_bytes), _gb(traffic.bytes)]
        for traffic in explanation.traffic
    ]
    return plain_table(["DRAM bytes by the model", "read", "written", "both"], rows, width)


def _measured(profiles: Sequence[Profile], explanation: Explanation, width: int | None) -> str:
    """DRAM bytes as measured, over those of the ideal, of the standard algorithm, and of the backend's own tiles."""
    ideal, standard, *_ = (traffic.bytes for traffic in explanation.traffic)
    own = {f"({profile.backend})": profile.backend for profile in profiles}
    tiled = {
        own[end]: traffic.bytes for traffic in explanation.traffic for end in own if traffic.algorithm.endswith(end)
    }
    rows = []
    for profile in profiles:
        if (total := profile.total) is None or not (moved := profile.dram_bytes):
            continue
        over = [
            f"{significant(moved / base)}x" if base else "-" for base in (ideal, standard, tiled.get(profile.backend))
        ]
        rows.append([profile.backend, _gb(total.dram_read_bytes), _gb(total.dram_written_bytes), _gb(moved), *over])
    names = ["DRAM bytes measured", "read", "written", "both", "over ideal", "over standard", "over its tiles"]
    return plain_table(names, rows, width)


def _us(kernel: Kernel) -> str:
    return significant(kernel.time_ns / 1e3, 4)


def _gb(count: float | None) -> str:
    return "-" if count is None else f"{significant(count / 1e9)} GB"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{significant(value * 100)}%"
