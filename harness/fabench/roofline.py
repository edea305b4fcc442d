"""The machine beside the problem: roofline, occupancy of the SMs, and what fits on a chip. Plain arithmetic, no torch.

M, the on-chip memory, is a property of the hardware and is given in bytes; the formulas of the papers take it in
elements, M bytes / e. Sources: Williams, Waterman, Patterson 2009 (roofline); Dao et al. 2022, arXiv 2205.14135, §3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

CTA_RESERVE = 1024
"""Bytes of shared memory that the driver keeps of each CTA (CUDA programming guide, compute capability 8 and later)."""


def ridge(peak_flops: float, bandwidth: float) -> float:
    """FLOP/byte above which a device of `peak_flops` FLOP/s and `bandwidth` bytes/s is bound by arithmetic."""
    return peak_flops / bandwidth


def attainable(intensity: float, peak_flops: float, bandwidth: float) -> float:
    """FLOP/s that the roofline allows at `intensity` FLOP/byte: min(peak, intensity·bandwidth)."""
    return min(peak_flops, intensity * bandwidth)


def bound(intensity: float, peak_flops: float, bandwidth: float) -> Literal["memory", "compute"]:
    """What limits a kernel of `intensity` FLOP/byte."""
    return "memory" if intensity < ridge(peak_flops, bandwidth) else "compute"


def seconds(flops: float, moved_bytes: float, peak_flops: float, bandwidth: float | None) -> float:
    """The least time: max(FLOPs/peak, bytes/bandwidth). An unknown bandwidth bounds nothing."""
    return max(flops / peak_flops, moved_bytes / bandwidth if bandwidth else 0.0)


def elementwise_intensity(flops_per_element: float, reads: int, writes: int, element_bytes: int) -> float:
    """FLOP/byte of an element-wise kernel: softmax in fp16 is 3 FLOPs, one read, one write, 0.75 FLOP/byte."""
    return flops_per_element / ((reads + writes) * element_bytes)


def rows_that_fit(memory_bytes: int, d: int, element_bytes: int) -> int:
    """Rows of d elements that fit in `memory_bytes` of on-chip memory."""
    return memory_bytes // (d * element_bytes)


def read_ratio(d: int, memory_bytes: int, element_bytes: int) -> float:
    """d²/M with M in elements: HBM reads of K and V by a tiled kernel, as a share of the N² of the standard one."""
    return d * d / (memory_bytes / element_bytes)


@dataclass(frozen=True)
class Tile:
    """A tile choice of a flash kernel: Br queries by Bc keys, `stages` buffers for what it streams, `threads` a CTA."""

    Br: int
    Bc: int
    d: int
    dv: int
    element_bytes: int
    stages: int = 1
    threads: int = 128
    scores_in_shared: bool = False
    """The S tile lives in shared memory rather than in registers."""
    shared: int | None = None
    """Bytes of shared memory where a kernel lays it out otherwise than the formula of `shared_bytes`."""
    accumulators: int | None = None
    """float32 sums of a CTA where a kernel has others than the O and S of a forward."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: (Br·d + stages·Bc·(d + dv))·e, and the S tile if it lives there."""
        if self.shared is not None:
            return self.shared
        elements = self.Br * self.d + self.stages * self.Bc * (self.d + self.dv)
        return (elements + (self.Br * self.Bc if self.scores_in_shared else 0)) * self.element_bytes

    @property
    def accumulator_registers(self) -> int:
        """32-bit registers a thread needs for the float32 accumulators of O and S: Br·(dv + Bc)/threads, rounded up."""
        sums = self.accumulators
        if sums is None:
            sums = self.Br * (self.dv + (0 if self.scores_in_shared else self.Bc))
        return math.ceil(sums / self.threads)

    def ctas_per_sm(self, shared_per_sm: int, registers_per_sm: int) -> int:
        """CTAs that fit an SM at once, by shared memory and by the registers of the accumulators: an upper bound."""
        by_registers = registers_per_sm // max(1, self.threads * self.accumulator_registers)
        return min(shared_per_sm // (self.shared_bytes + CTA_RESERVE), by_registers)

    def reasons(self, shared_limit: int, register_limit: int = 255) -> list[str]:
        """Why the tile is not feasible with `shared_limit` bytes of shared memory a CTA; empty if it is."""
        reasons = []
        if self.shared_bytes > shared_limit:
            reasons.append(f"shared memory {self.shared_bytes} B > {shared_limit} B")
        if self.accumulator_registers > register_limit:
            reasons.append(f"accumulators {self.accumulator_registers} registers a thread > {register_limit}")
        return reasons


def ctas(algorithm: Literal["v1", "v2"], batch_heads: int, Nq: int, Br: int) -> int:
    """CTAs of the grid: one for each batch·head (v1), or one for each query tile too (v2)."""
    return batch_heads if algorithm == "v1" else batch_heads * math.ceil(Nq / Br)


def waves(grid: int, sms: int, ctas_per_sm: int = 1) -> float:
    """Rounds of CTAs that the card needs; below 1 some SMs have nothing to do."""
    return grid / (sms * ctas_per_sm)


def sm_share(grid: int, sms: int) -> float:
    """Share of the SMs that get at least one CTA: 16 CTAs use 12 % of 132 SMs."""
    return min(1.0, grid / sms)
