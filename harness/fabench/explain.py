"""The model of one case on one card: FLOPs, HBM traffic by algorithm and step, roofline, memory, CTAs, tiles.

Formulas and their sources are in `cost`, `steps` and `roofline`; here they are put together. All in base units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fabench import roofline, steps
from fabench.case import Case
from fabench.cost import Cost, MemoryModel, cost, extra_memory, lse_bytes, output_bytes, score_bytes
from fabench.dtypes import DTYPES
from fabench.gpus import Gpu
from fabench.roofline import Tile
from fabench.steps import Step

Loop = Literal["v1", "v2"]
"""v1: the outer loop is over K and V (2022). v2: it is over Q (2023)."""

CTA_RESERVE = 1024
"""Bytes of shared memory that the driver keeps of each CTA (CUDA programming guide, compute capability 8 and later)."""


@dataclass(frozen=True)
class Tiling:
    """How a kernel cuts a case: its loop order and tile, and who cuts it so."""

    loop: Loop
    tile: Tile
    source: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tiling:
        """The tiling `to_json` wrote."""
        return cls(data["loop"], Tile(**data["tile"]), data["source"])


@dataclass(frozen=True)
class Traffic:
    """One algorithm's HBM traffic and what the roofline makes of it."""

    algorithm: str
    read_bytes: int
    written_bytes: int
    intensity: float
    """FLOPs of the problem per byte moved."""
    bound: str | None
    """'memory' or 'compute'; None on a card whose peak or bandwidth is not known."""
    attainable_flops: float | None
    """FLOP/s that the roofline allows."""
    least_s: float | None
    """The FLOPs of the problem at that rate."""
    steps: tuple[Step, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Occupancy:
    """How the grid of a tiled kernel meets the card."""

    tiling: Tiling
    ctas: int
    ctas_per_sm: int | None
    """As shared memory allows."""
    waves: float | None
    sm_share: float | None
    infeasible: tuple[str, ...]
    """Why the tile does not fit; empty if it does."""


@dataclass(frozen=True)
class Explanation:
    """Everything `fabench explain` says of one case on one card."""

    case: Case
    gpu: Gpu
    cost: Cost
    peak_flops: float | None
    bandwidth: float | None
    ridge: float | None
    traffic: tuple[Traffic, ...]
    """ideal, standard, tiled v1, tiled v2."""
    occupancy: tuple[Occupancy, ...]
    score_bytes: int
    """S and P together."""
    lse_bytes: int
    extra_bytes: Mapping[MemoryModel, int]
    """Memory beyond the inputs, by model."""
    read_ratio: float | None
    """d²/M: a tiled kernel's reads of K and V as a share of the standard algorithm's N²."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values in base units."""
        return {
            "case": self.case.key,
            "gpu": {**asdict(self.gpu), "peaks": self.gpu.peaks.model_dump(mode="json")},
            "pairs": self.cost.pairs,
            "flops": self.cost.flops,
            "convention": self.cost.convention,
            "peak_flops_per_s": self.peak_flops,
            "bandwidth_bytes_per_s": self.bandwidth,
            "ridge_flops_per_byte": self.ridge,
            "algorithms": [_traffic_json(traffic) for traffic in self.traffic],
            "occupancy": [_occupancy_json(item) for item in self.occupancy],
            "scores_bytes": self.score_bytes,
            "lse_bytes": self.lse_bytes,
            "extra_bytes": dict(self.extra_bytes),
            "read_ratio": self.read_ratio,
        }


def explain(case: Case, gpu: Gpu, tilings: Sequence[Tiling] = ()) -> Explanation:
    """The model of `case` on `gpu`. `tilings` are those of real kernels; a loop order without one gets the paper's."""
    counted = cost(case)
    peak, bandwidth = gpu.peaks.flops.get(case.dtype), gpu.peaks.bandwidth
    known = {tiling.loop for tiling in tilings}
    cut = [*(paper_tiling(loop, case, gpu) for loop in LOOPS if loop not in known), *tilings]
    cut.sort(key=lambda tiling: tiling.loop)
    moved = {"standard": steps.standard(case)} | {algorithm_name(tiling): tiled(case, tiling) for tiling in cut}
    written = output_bytes(case)
    traffic = [_traffic("ideal", counted, counted.ideal_bytes - written, written, peak, bandwidth)]
    for name, parts in moved.items():
        read, wrote = sum(step.read_bytes for step in parts), sum(step.written_bytes for step in parts)
        traffic.append(_traffic(name, counted, read, wrote, peak, bandwidth, tuple(parts)))
    on_chip = gpu.shared_per_cta
    return Explanation(
        case=case,
        gpu=gpu,
        cost=counted,
        peak_flops=peak,
        bandwidth=bandwidth,
        ridge=roofline.ridge(peak, bandwidth) if peak and bandwidth else None,
        traffic=tuple(traffic),
        occupancy=tuple(occupancy(tiling, case, gpu) for tiling in cut),
        score_bytes=2 * score_bytes(case),
        lse_bytes=lse_bytes(case),
        extra_bytes={"standard": extra_memory(case, "standard"), "flash": extra_memory(case, "flash")},
        read_ratio=roofline.read_ratio(case.d, on_chip, DTYPES[case.dtype].bytes) if on_chip else None,
    )


LOOPS: tuple[Loop, ...] = ("v1", "v2")


def algorithm_name(tiling: Tiling) -> str:
    """'tiled v2, 128 x 64 (cuda-v2)'."""
    return f"tiled {tiling.loop}, {tiling.tile.Br} x {tiling.tile.Bc} ({tiling.source})"


def tiled(case: Case, tiling: Tiling) -> list[Step]:
    """The steps of a tiled kernel in the case's direction; the backward has K and V in its outer loop in both."""
    tile = tiling.tile
    forward = steps.tiled_v1_forward if tiling.loop == "v1" else steps.tiled_v2_forward
    return [
        *([] if case.direction == "backward" else forward(case, tile.Br, tile.Bc)),
        *(steps.tiled_backward(case, tile.Br, tile.Bc) if case.has_backward else []),
    ]


def paper_tiling(loop: Loop, case: Case, gpu: Gpu) -> Tiling:
    """The tile of the papers where no kernel says its own.

    v1: Bc = ceil(M/4d) and Br = min(Bc, d) with M elements on chip (2022, algorithm 1), rounded down to multiples of
    16, the rows of a matrix instruction. v2: 128 x 64 with two stages (2023, §3.3 has 64 or 128 for either).
    """
    e = DTYPES[case.dtype].bytes
    if loop == "v2":
        return Tiling("v2", Tile(128, 64, case.d, case.dv, e, stages=2), "the paper's")
    rows = -(-(gpu.shared_per_cta or 96 * 1024) // e // (4 * max(case.d, case.dv)))
    Bc = max(16, rows // 16 * 16)
    Br = max(16, min(Bc, case.d) // 16 * 16)
    return Tiling("v1", Tile(Br, Bc, case.d, case.dv, e, threads=256), "the paper's")


def occupancy(tiling: Tiling, case: Case, gpu: Gpu) -> Occupancy:
    """CTAs, waves and feasibility of a tiling of the forward."""
    grid = roofline.ctas(tiling.loop, case.batch * case.heads, case.Nq, tiling.tile.Br)
    fit = None
    if gpu.shared_per_sm:
        fit = max(1, gpu.shared_per_sm // (tiling.tile.shared_bytes + CTA_RESERVE))
    return Occupancy(
        tiling=tiling,
        ctas=grid,
        ctas_per_sm=fit,
        waves=roofline.waves(grid, gpu.sms, fit) if gpu.sms and fit else None,
        sm_share=roofline.sm_share(grid, gpu.sms) if gpu.sms else None,
        infeasible=tuple(tiling.tile.reasons(gpu.shared_per_cta)) if gpu.shared_per_cta else (),
    )


def _traffic(
    name: str,
    counted: Cost,
    read: int,
    written: int,
    peak: float | None,
    bandwidth: float | None,
    parts: tuple[Step, ...] = (),
) -> Traffic:
    per_byte = counted.flops / (read + written) if read + written else 0.0
    return Traffic(
        algorithm=name,
        read_bytes=read,
        written_bytes=written,
        intensity=per_byte,
        bound=roofline.bound(per_byte, peak, bandwidth) if peak and bandwidth else None,
        attainable_flops=roofline.attainable(per_byte, peak, bandwidth) if peak and bandwidth else None,
        least_s=roofline.seconds(counted.flops, read + written, peak, bandwidth) if peak else None,
        steps=parts,
    )


def _traffic_json(traffic: Traffic) -> dict[str, Any]:
    return {
        "algorithm": traffic.algorithm,
        "read_bytes": traffic.read_bytes,
        "written_bytes": traffic.written_bytes,
        "intensity_flops_per_byte": traffic.intensity,
        "bound": traffic.bound,
        "attainable_flops_per_s": traffic.attainable_flops,
        "least_s": traffic.least_s,
        "steps": [
            {
                "name": step.name,
                "flops": step.flops,
                "counted": step.counted,
                "read_bytes": step.read_bytes,
                "written_bytes": step.written_bytes,
                "intensity_flops_per_byte": step.intensity,
                "transfers": [asdict(transfer) | {"bytes": transfer.bytes} for transfer in step.transfers],
            }
            for step in traffic.steps
        ],
    }


def _occupancy_json(item: Occupancy) -> dict[str, Any]:
    tile = item.tiling.tile
    return {
        "loop": item.tiling.loop,
        "source": item.tiling.source,
        "tile": asdict(tile) | {"shared_bytes": tile.shared_bytes, "accumulator_registers": tile.accumulator_registers},
        "ctas": item.ctas,
        "ctas_per_sm": item.ctas_per_sm,
        "waves": item.waves,
        "sm_share": item.sm_share,
        "feasible": not item.infeasible,
        "infeasible": list(item.infeasible),
    }
