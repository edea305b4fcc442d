"""The model of one case on one card: FLOPs, HBM traffic by algorithm and step, roofline, memory, CTAs, tiles.

Formulas and their sources are in `cost`, `steps`, `tiled_steps` and `roofline`; here they are put together. All is in
base units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fabench import roofline, steps
from fabench.case import Case
from fabench.cost import Cost, MemoryModel, cost, extra_memory, input_bytes, lse_bytes, output_bytes, score_bytes
from fabench.dtypes import DTYPES
from fabench.gpus import Gpu
from fabench.steps import Step
from fabench.tiling import LOOPS, Launch, Tiling, paper


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
    launch: Launch
    ctas_per_sm: int | None
    """The most that fit at once; None if the tile does not fit at all, or the card's memory is not known."""
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
    """ideal, standard, then each tiling, v1 before v2."""
    occupancy: tuple[Occupancy, ...]
    score_bytes: int
    """S and P together."""
    lse_bytes: int
    extra_bytes: Mapping[MemoryModel, int]
    """Memory beyond the inputs, by model."""
    input_bytes: int
    read_ratio: float | None
    """d²/M: a tiled kernel's reads of K and V as a share of the standard algorithm's N²."""

    @property
    def needed_bytes(self) -> dict[MemoryModel, int]:
        """Memory of one call and its inputs, by model."""
        return {model: self.input_bytes + extra for model, extra in self.extra_bytes.items()}

    def exceeds_memory(self, needed: int) -> bool | None:
        """Whether so many bytes are more than the card has; None if its memory is not known."""
        return needed > self.gpu.memory_bytes if self.gpu.memory_bytes else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values in base units."""
        return {
            "case": self.case.key,
            "gpu": self.gpu.to_json(),
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
            "inputs_bytes": self.input_bytes,
            "extra_bytes": dict(self.extra_bytes),
            "needed_bytes": self.needed_bytes,
            "exceeds_memory": {
                "scores": self.exceeds_memory(self.score_bytes),
                **{model: self.exceeds_memory(needed) for model, needed in self.needed_bytes.items()},
            },
            "read_ratio": self.read_ratio,
        }


def explain(case: Case, gpu: Gpu, tilings: Sequence[Tiling] = ()) -> Explanation:
    """The model of `case` on `gpu`. `tilings` are those of real kernels; a loop order without one gets the paper's."""
    counted = cost(case)
    peak, bandwidth = gpu.peaks.flops.get(case.dtype), gpu.peaks.bandwidth
    known = {tiling.loop for tiling in tilings}
    cut = [*(paper(loop, case, gpu.shared_per_cta) for loop in LOOPS if loop not in known), *tilings]
    cut.sort(key=lambda tiling: tiling.loop)
    moved = [("standard", tuple(steps.standard(case))), *((tiling.name, tiling.steps) for tiling in cut)]
    written = output_bytes(case)
    traffic = [_traffic("ideal", counted, counted.ideal_bytes - written, written, peak, bandwidth)]
    for name, parts in moved:
        read, wrote = sum(step.read_bytes for step in parts), sum(step.written_bytes for step in parts)
        traffic.append(_traffic(name, counted, read, wrote, peak, bandwidth, parts))
    on_chip = gpu.shared_per_cta
    return Explanation(
        case=case,
        gpu=gpu,
        cost=counted,
        peak_flops=peak,
        bandwidth=bandwidth,
        ridge=roofline.ridge(peak, bandwidth) if peak and bandwidth else None,
        traffic=tuple(traffic),
        occupancy=tuple(occupancy(tiling, launch, gpu) for tiling in cut for launch in tiling.launches),
        score_bytes=2 * score_bytes(case),
        lse_bytes=lse_bytes(case),
        extra_bytes={"standard": extra_memory(case, "standard"), "flash": extra_memory(case, "flash")},
        input_bytes=input_bytes(case),
        read_ratio=roofline.read_ratio(case.d, on_chip, DTYPES[case.dtype].bytes) if on_chip else None,
    )


def occupancy(tiling: Tiling, launch: Launch, gpu: Gpu) -> Occupancy:
    """Waves and feasibility of one kernel of a tiling."""
    tile, fit = launch.tile, None
    infeasible = tuple(tile.reasons(gpu.shared_per_cta, gpu.registers_per_thread)) if gpu.shared_per_cta else ()
    if gpu.shared_per_sm and not infeasible:
        fit = max(1, tile.ctas_per_sm(gpu.shared_per_sm, gpu.registers_per_sm))
        fit = min(fit, launch.ctas_per_sm or fit)
    return Occupancy(
        tiling=tiling,
        launch=launch,
        ctas_per_sm=fit,
        waves=roofline.waves(launch.ctas, gpu.sms, fit) if gpu.sms and fit else None,
        sm_share=roofline.sm_share(launch.ctas, gpu.sms) if gpu.sms else None,
        infeasible=infeasible,
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
    tile = item.launch.tile
    return {
        "loop": item.tiling.loop,
        "source": item.tiling.source,
        "kernel": item.launch.kernel,
        "tile": asdict(tile) | {"shared_bytes": tile.shared_bytes, "accumulator_registers": tile.accumulator_registers},
        "ctas": item.launch.ctas,
        "ctas_per_sm": item.ctas_per_sm,
        "waves": item.waves,
        "sm_share": item.sm_share,
        "feasible": not item.infeasible,
        "infeasible": list(item.infeasible),
    }
