"""Cards as data, for reckoning without one: SMs, on-chip memory and peaks, each with its source. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fabench.device import Device
from fabench.errors import DeviceError
from fabench.measure.peaks import peaks
from fabench.records import Peaks
from fabench.records.base import Count, Natural
from fabench.text import did_you_mean

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class Gpu:
    """One card as `explain` sees it, from the table or measured here."""

    slug: str
    name: str
    """As the driver names it."""
    peaks: Peaks
    sms: Count | None = None
    shared_per_sm: Natural | None = None
    """Bytes of shared memory of one SM."""
    shared_per_cta: Natural | None = None
    """Bytes of it that one CTA can have."""
    registers_per_sm: Count = 65536
    """32-bit registers: 64 K of every NVIDIA SM (CUDA programming guide, technical specifications, from 5.0 on)."""
    registers_per_thread: Count = 255
    """Most that one thread can have (as above)."""
    l2_bytes: Natural | None = None
    memory_bytes: Natural | None = None
    capability: tuple[int, int] | None = None
    source: str = ""
    """Of the figures beside the peaks, which name their own."""

    @property
    def sources(self) -> str:
        """Where the figures come from, each source once."""
        return "; ".join(dict.fromkeys(f"{self.peaks.source}; {self.source}".split("; ")))

    def to_json(self) -> dict[str, Any]:
        """Every figure, in base units."""
        return {**asdict(self), "peaks": self.peaks.model_dump(mode="json")}

    @property
    def device(self) -> Device:
        """The card as backends are asked about it."""
        kind: Literal["cpu", "cuda"] = "cpu" if self.slug == "cpu" else "cuda"
        return Device(
            kind,
            self.name,
            capability=self.capability,
            sms=self.sms,
            memory_bytes=self.memory_bytes or 0,
            free_bytes=self.memory_bytes or 0,
            l2_bytes=self.l2_bytes,
        )


@dataclass(frozen=True)
class _Entry:
    slugs: tuple[str, ...]
    name: str
    capability: tuple[int, int] | None
    sms: int
    shared_kib: tuple[int, int]
    """(per SM, per CTA)."""
    l2_mib: float
    memory_gib: float
    source: str
    registers: tuple[int, int] = (Gpu.registers_per_sm, Gpu.registers_per_thread)
    """(per SM, per thread)."""


_CUDA = "CUDA programming guide, technical specifications (shared memory)"
_ENTRIES = (
    _Entry(("a100-40gb", "nvidia-a100-sxm4-40gb"), "NVIDIA A100-SXM4-40GB", (8, 0), 108, (164, 163), 40, 40,
           f"NVIDIA A100 architecture whitepaper; {_CUDA}"),
    _Entry(("a100-80gb", "nvidia-a100-sxm4-80gb"), "NVIDIA A100-SXM4-80GB", (8, 0), 108, (164, 163), 40, 80,
           f"NVIDIA A100 architecture whitepaper; {_CUDA}"),
    _Entry(("nvidia-h100-sxm", "nvidia-h100-80gb-hbm3"), "NVIDIA H100 80GB HBM3", (9, 0), 132, (228, 227), 50, 80,
           f"NVIDIA H100 architecture whitepaper; {_CUDA}"),
    _Entry(("nvidia-h100-pcie",), "NVIDIA H100 PCIe", (9, 0), 114, (228, 227), 50, 80,
           f"NVIDIA H100 architecture whitepaper; {_CUDA}"),
    _Entry(("nvidia-h200",), "NVIDIA H200", (9, 0), 132, (228, 227), 60, 141,
           f"NVIDIA H200 datasheet, the H100 architecture whitepaper for the chip, the driver (L2); {_CUDA}"),
    _Entry(("nvidia-b200",), "NVIDIA B200", (10, 0), 148, (228, 227), 126, 180,
           f"NVIDIA DGX B200 datasheet (memory), NVIDIA Blackwell tuning guide (L2), the driver (SMs); {_CUDA}"),
    _Entry(("rtx-4090", "nvidia-geforce-rtx-4090"), "NVIDIA GeForce RTX 4090", (8, 9), 128, (100, 99), 72, 24,
           f"NVIDIA Ada architecture whitepaper; {_CUDA}"),
    _Entry(("nvidia-l40s",), "NVIDIA L40S", (8, 9), 142, (100, 99), 96, 48, f"NVIDIA L40S datasheet; {_CUDA}"),
    _Entry(("mi300x", "amd-instinct-mi300x"), "AMD Instinct MI300X", None, 304, (64, 64), 32, 192,
           "AMD CDNA 3 whitepaper: compute units, LDS and registers a compute unit, L2 of 8 dies", (131072, 512)),
)  # fmt: skip

SHARED_KIB: dict[tuple[int, int], tuple[int, int]] = {
    (7, 0): (96, 96), (7, 5): (64, 64), (8, 0): (164, 163), (8, 6): (100, 99), (8, 7): (164, 163), (8, 9): (100, 99),
    (9, 0): (228, 227), (10, 0): (228, 227), (10, 3): (228, 227), (12, 0): (100, 99), (12, 1): (100, 99),
}  # fmt: skip
"""Compute capability -> KiB of shared memory (per SM, per CTA): CUDA programming guide, technical specifications."""


def slugs() -> list[str]:
    """The first name of every card in the table."""
    return [entry.slugs[0] for entry in _ENTRIES]


def named(slug: str) -> Gpu:
    """The card of that name, with or without its maker in front. Raises DeviceError with the nearest name."""
    known = {name: entry for entry in _ENTRIES for name in entry.slugs}
    known |= {name.partition("-")[2]: entry for name, entry in known.items() if name.startswith(("nvidia-", "amd-"))}
    if slug not in known:
        holding = [name for name in slugs() if slug and slug.lower() in name]
        hint = f"; did you mean {' or '.join(map(repr, holding))}?" if holding else did_you_mean(slug, known)
        hint = hint or f"; known: {', '.join(slugs())}, this"
        raise DeviceError(f"unknown GPU '{slug}'{hint}")
    entry = known[slug]
    per_sm, per_cta = entry.shared_kib
    return Gpu(
        slug=entry.slugs[0],
        name=entry.name,
        peaks=peaks(Device("cuda", entry.name)),
        sms=entry.sms,
        shared_per_sm=per_sm * KIB,
        shared_per_cta=per_cta * KIB,
        registers_per_sm=entry.registers[0],
        registers_per_thread=entry.registers[1],
        l2_bytes=int(entry.l2_mib * MIB),
        memory_bytes=int(entry.memory_gib * GIB),
        capability=entry.capability,
        source=entry.source,
    )


def here(device: Device) -> Gpu:
    """The device here with its datasheet's peaks, or computed ones."""
    return replace(measured(device, {}, None), peaks=peaks(device))


def measured(device: Device, gemm_flops: dict[str, float], copy_bandwidth: float | None) -> Gpu:
    """The device here, its peaks being what a large GEMM and a large copy reached."""
    per_sm, per_cta = SHARED_KIB.get(device.capability or (0, 0), (0, 0))
    return Gpu(
        slug=device.slug,
        name=device.name,
        peaks=Peaks(flops=gemm_flops, bandwidth=copy_bandwidth, source="measured here: a large GEMM, a large copy"),
        sms=device.sms,
        shared_per_sm=per_sm * KIB or None,
        shared_per_cta=per_cta * KIB or None,
        l2_bytes=device.l2_bytes,
        memory_bytes=device.memory_bytes,
        capability=device.capability,
        source="the driver",
    )
