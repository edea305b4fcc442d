"""What the canaries of a file say: the card's measured peaks, and whether they moved between two files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from fabench.names import Regime
from fabench.records import Canary, CostRecord

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Peak:
    """The median of some canary readings, and the variance of ln of that median."""

    value: float
    variance: float
    readings: int


@dataclass(frozen=True)
class Roofline:
    """Measured peaks of one card in one state."""

    gemm: dict[str, Peak] = field(default_factory=dict)
    """FLOP/s by dtype."""
    copy: Peak | None = None
    """Bytes/s."""
    null_ns: float | None = None
    """Launch floor."""

    def bound(self, cost: CostRecord, dtype: str) -> Bound | None:
        """What limits a row of this cost here; None without both canaries."""
        gemm = self.gemm.get(dtype)
        if gemm is None or self.copy is None:
            return None
        return "compute" if cost.flops / gemm.value >= cost.ideal_bytes / self.copy.value else "memory"

    def seconds(self, cost: CostRecord, dtype: str) -> tuple[float, float] | None:
        """Least time max(FLOPs/P, bytes/BW) of a row, and the variance of its ln; None without both canaries."""
        bound = self.bound(cost, dtype)
        if bound is None or self.copy is None:
            return None
        peak = self.gemm[dtype] if bound == "compute" else self.copy
        amount = cost.flops if bound == "compute" else cost.ideal_bytes
        return amount / peak.value, peak.variance


def roofline(canaries: Iterable[Canary]) -> Roofline:
    """The medians of these readings; readings of 0 or less are none."""
    gemm: dict[str, list[float]] = {}
    copy, null = [], []
    for canary in canaries:
        for dtype, flops in canary.gemm_flops.items():
            gemm.setdefault(dtype, []).append(flops)
        copy.append(canary.copy_bandwidth or 0.0)
        null.append(canary.null_ns or 0.0)
    peaks = {dtype: peak for dtype, values in gemm.items() if (peak := _peak(values))}
    launch = _peak(null)
    return Roofline(peaks, _peak(copy), launch.value if launch else None)


def _peak(values: list[float]) -> Peak | None:
    """Median, and the variance of ln of it: pi/2 times the mean's (many normal readings); 0 if there is one."""
    positive = [value for value in values if value > 0]
    if not positive:
        return None
    spread = statistics.variance(map(math.log, positive)) if len(positive) > 1 else 0.0
    return Peak(statistics.median(positive), math.pi / 2 * spread / len(positive), len(positive))


def select(canaries: Iterable[Canary], envs: frozenset[str], regime: Regime | None) -> list[Canary]:
    """The readings of these envs, of this regime if one is named."""
    return [c for c in canaries if c.env_id in envs and regime in (None, c.regime)]


def move(old: Roofline, new: Roofline, bound: Bound | None, dtype: str) -> float | None:
    """ln of how much longer the fixed work of a bound class takes in new than in old; None where one did not time it.

    Rows whose bound is not known take the larger of the two moves.
    """
    moves = []
    if bound != "memory" and dtype in old.gemm and dtype in new.gemm:
        moves.append(math.log(old.gemm[dtype].value / new.gemm[dtype].value))
    if bound != "compute" and old.copy and new.copy:
        moves.append(math.log(old.copy.value / new.copy.value))
    return max(moves, key=abs) if moves else None
