"""What the first declared configurations make of a case: tiles, grids, what a call moves. No triton or torch here."""

from __future__ import annotations

from fabench import tiled_steps
from fabench.case import Case
from fabench.device import Device
from fabench.dtypes import DTYPES
from fabench.roofline import Tile
from fabench.steps import Step
from fabench.tiling import Launch, Tiling
from fabench_backends.triton_flash.configs import Kernel, candidates, width


def tiling(name: str, case: Case, device: Device) -> Tiling | None:
    """The tiling of backend `name` on `device`; None where no compute capability says which list it takes."""
    if device.capability is None or 0 in (case.Nq, case.Nk):
        return None
    arch = 10 * device.capability[0] + device.capability[1]
    launches: list[Launch] = []
    steps: list[Step] = []
    if case.direction != "backward":
        tile = _tile("forward", case, arch)
        launches.append(_by_queries("forward", tile, case))
        steps += tiled_steps.forward_v2(case, tile.Br, tile.Bc)
    if case.has_backward:
        dq, dkdv = _tile("backward_dq", case, arch), _tile("backward_dkdv", case, arch)
        key_tiles = -(-case.Nk // dkdv.Bc)
        launches.append(_by_queries("backward_dq", dq, case))
        launches.append(Launch("triton_flash_backward_dkdv", dkdv, case.batch * case.kv_heads * key_tiles))
        steps += tiled_steps.backward_dQ(case, dq.Br, dq.Bc)
        steps += tiled_steps.backward_dK_dV(case, dkdv.Br, dkdv.Bc)
    return Tiling("v2", name, tuple(launches), tuple(steps))


def _by_queries(kernel: Kernel, tile: Tile, case: Case) -> Launch:
    return Launch(f"triton_flash_{kernel}", tile, case.batch * case.heads * -(-case.Nq // tile.Br))


def _tile(kernel: Kernel, case: Case, arch: int) -> Tile:
    """The first configuration as a tile: what a program holds, what it streams in stages, and the sums it keeps.

    Triton lays out shared memory itself; compiled, it takes what stands here and up to 2 KiB more in 16 bits, and less
    in fp32.
    """
    d, dv, e = width(case.d), width(case.dv), DTYPES[case.dtype].bytes
    config = candidates(kernel, arch, max(d, dv), e)[0]
    Br, Bc, stages = config.BLOCK_M, config.BLOCK_N, config.num_stages
    held, streamed, sums = {
        "forward": (Br * d, Bc * (d + dv), Br * dv + Br * Bc),
        "backward_dq": (Br * (d + dv), Bc * (d + dv), Br * d + 2 * Br * Bc),
        "backward_dkdv": (Bc * (d + dv), Br * (d + dv), Bc * (d + dv) + 2 * Br * Bc),
    }[kernel]
    return Tile(
        Br, Bc, d, dv, e, stages=stages, threads=32 * config.num_warps, shared=(held + stages * streamed) * e,
        accumulators=sums,
    )  # fmt: skip
