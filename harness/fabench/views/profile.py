"""What `fabench profile` prints: kernels as counted, and the bytes they moved beside the model's."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from fabench.explain import Explanation
from fabench.measure.kernels import short_name
from fabench.profiling.kernel import Kernel, Profile, combined
from fabench.text import bytes_text
from fabench.views.values import significant

NAME_LENGTH = 48
LEAST_SHARE = 0.002
"""Kernels below this share of the call's time share a line."""


def render(profiles: Sequence[Profile], explanation: Explanation) -> str:
    """A table of kernels a backend, then DRAM bytes of all beside the model where counters were read."""
    parts = [explanation.case.label() + "\n" + explanation.gpu.name, *(_kernels(profile) for profile in profiles)]
    if any(profile.dram_bytes is not None for profile in profiles):
        parts.append(_beside_model(profiles, explanation))
    return "\n\n".join(parts)


def _kernels(profile: Profile) -> str:
    title = f"{profile.backend}: counted by ncu" if profile.tool == "ncu" else f"{profile.backend}: torch's profiler"
    note = f"\n{profile.note}" if profile.note else ""
    if (total := profile.total) is None:
        return f"{title}{note}\nno kernel was seen"
    kernels = [*_worth_a_line(profile), *([total] if len(profile.kernels) > 1 else [])]
    if profile.tool == "torch":
        rows = [[short_name(k.name, NAME_LENGTH), str(k.launches), _us(k)] for k in kernels]
        return f"{title}{note}\n\n{_draw(['kernel', 'launches', 'us'], rows)}"
    names = ["kernel", "launches", "us", "DRAM read", "written", "L2 hit", "tensor", "occupancy", "regs", "shared"]
    return f"{title}{note}\n\n{_draw(names, [_counted(kernel) for kernel in kernels])}"


def _worth_a_line(profile: Profile) -> list[Kernel]:
    """The kernels that take a share of the time worth a line; the others as one."""
    total = sum(kernel.time_ns for kernel in profile.kernels)
    long = [kernel for kernel in profile.kernels if kernel.time_ns >= LEAST_SHARE * total]
    short = [kernel for kernel in profile.kernels if kernel.time_ns < LEAST_SHARE * total]
    name = f"{len(short)} other{'s' if len(short) > 1 else ''}"
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


def _beside_model(profiles: Sequence[Profile], explanation: Explanation) -> str:
    """DRAM bytes as measured and as modelled, each model's share of what was measured beside it."""
    models = {traffic.algorithm: traffic for traffic in explanation.traffic}
    measured = [profile for profile in profiles if profile.dram_bytes]
    rows = []
    for name, traffic in models.items():
        ratios = [f"{(profile.dram_bytes or 0) / traffic.bytes:.3f}x" for profile in measured]
        rows.append([name, _gb(traffic.read_bytes), _gb(traffic.written_bytes), _gb(traffic.bytes), *ratios])
    for profile in measured:
        total = profile.total
        assert total is not None  # it has bytes
        cells = [_gb(total.dram_read_bytes), _gb(total.dram_written_bytes), _gb(profile.dram_bytes)]
        rows.append([f"{profile.backend}, measured", *cells, *[""] * len(measured)])
    names = ["DRAM bytes", "read", "written", "both", *(f"{p.backend} over it" for p in measured)]
    return _draw(names, rows)


def _us(kernel: Kernel) -> str:
    return significant(kernel.time_ns / 1e3, 4)


def _gb(count: float | None) -> str:
    return "-" if count is None else f"{significant(count / 1e9)} GB"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{significant(value * 100)}%"


def _draw(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = ["left"] + ["right"] * (len(names) - 1)
    text = tabulate(rows, names, "simple", disable_numparse=True, colalign=sides)
    return "\n".join(line.rstrip() for line in text.splitlines())
