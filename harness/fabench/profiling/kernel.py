"""One kernel of a profiled call, and a call's kernels together. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fabench.records.base import Amount, Count, Natural

Tool = Literal["ncu", "torch"]


@dataclass(frozen=True)
class Kernel:
    """A kernel, its launches in the call taken together. What the tool could not see is None."""

    name: str
    launches: Count
    time_ns: Amount
    """Added up over the launches."""
    dram_read_bytes: Amount | None = None
    dram_written_bytes: Amount | None = None
    l2_hit: Amount | None = None
    """Share of L2 sector lookups that hit; shares are means over launches, weighted by time."""
    tensor: Amount | None = None
    """Share of cycles in which the tensor pipe was busy, of active cycles."""
    occupancy: Amount | None = None
    """Active warps over the most an SM can hold."""
    registers: Natural | None = None
    """A thread's."""
    shared_bytes: Natural | None = None
    """A CTA's, static and dynamic."""


SUMMED = ("time_ns", "dram_read_bytes", "dram_written_bytes")
AVERAGED = ("l2_hit", "tensor", "occupancy")
LARGEST = ("registers", "shared_bytes")


@dataclass(frozen=True)
class Profile:
    """What one backend's call ran, and who counted."""

    backend: str
    tool: Tool
    kernels: tuple[Kernel, ...]
    """In the order of their first launch."""
    note: str = ""
    """Why it was not ncu."""

    @property
    def total(self) -> Kernel | None:
        """All kernels as one; None if there are none."""
        return combined("all", self.kernels) if self.kernels else None

    @property
    def dram_bytes(self) -> float | None:
        """DRAM bytes read and written by the whole call."""
        total = self.total
        if total is None or total.dram_read_bytes is None or total.dram_written_bytes is None:
            return None
        return total.dram_read_bytes + total.dram_written_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values in base units."""
        total = self.total
        return {
            "backend": self.backend,
            "tool": self.tool,
            "note": self.note,
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "total": asdict(total) if total else None,
        }


def by_name(launches: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """The launches with equal names taken together, in the order of the first."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in launches:
        groups.setdefault(kernel.name, []).append(kernel)
    return tuple(combined(name, group) for name, group in groups.items())


def combined(name: str, kernels: Sequence[Kernel]) -> Kernel:
    """Several kernels as one: times and bytes added, shares averaged by time, the largest footprint."""
    fields: dict[str, Any] = {field: _sum([getattr(k, field) for k in kernels]) for field in SUMMED}
    for field in AVERAGED:
        known = [(k.time_ns, value) for k in kernels if (value := getattr(k, field)) is not None]
        weight = sum(time for time, _ in known)
        fields[field] = sum(time * value for time, value in known) / weight if weight else None
    for field in LARGEST:
        fields[field] = max((value for k in kernels if (value := getattr(k, field)) is not None), default=None)
    return Kernel(name, sum(k.launches for k in kernels), **fields)


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; None if any part is not known, for a partial sum would look like a whole one."""
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
