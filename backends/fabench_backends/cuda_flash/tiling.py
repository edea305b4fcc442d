"""What the kernels' configurations make of a case: tiles, grids, and what a call moves. No torch at import time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fabench import tiled_steps
from fabench.case import Case
from fabench.device import Device
from fabench.roofline import Tile
from fabench.steps import Step
from fabench.tiling import Launch, Tiling
from fabench_backends.cuda_flash import configs
from fabench_backends.cuda_flash.build import architecture
from fabench_backends.cuda_flash.configs import BackwardTile, Config, ForwardTile, V1ForwardTile

E = 2
"""Bytes an element: fp16 and bf16 are all that these kernels take."""


def tiling(version: Literal["v1", "v2"], name: str, case: Case, device: Device) -> Tiling | None:
    """The tiling of backend `name` on `device`; None where no compute capability says which kernels it gets."""
    if device.capability is None or 0 in (case.Nq, case.Nk):
        return None
    arch, launches = architecture(device.capability), []
    steps: Sequence[Step] = ()
    if case.direction != "backward":
        main = _config(f"flash_{version}_fwd", case, arch)
        launch, steps = _v1_forward(main, case) if version == "v1" else _v2_forward(main, case, device)
        launches.append(launch)
    if case.has_backward:
        main = _config(f"flash_{version}_bwd", case, arch)
        launches.append(_backward(main, case))
        tile = launches[-1].tile
        steps = [*steps, *tiled_steps.backward(case, tile.Br, tile.Bc, apart=True)]
    return Tiling(version, name, tuple(launches), tuple(steps))


def _config(kernel: str, case: Case, arch: str) -> Config:
    mask: configs.Mask = "softcap" if case.softcap else "none" if case.mask.is_full else "band"
    return configs.config(kernel, max(case.d, case.dv), case.dtype, mask, arch)


def _tile(config: Config, Br: int, Bc: int, stages: int, accumulators: int | None = None) -> Tile:
    return Tile(
        Br, Bc, config.d, config.d, E, stages=stages, threads=config.tile.threads, shared=config.smem_bytes,
        accumulators=accumulators,
    )  # fmt: skip


def _v1_forward(config: Config, case: Case) -> tuple[Launch, list[Step]]:
    assert isinstance(config.tile, V1ForwardTile)
    tile = _tile(config, config.tile.warps * 16, config.tile.block_kv, stages=2)
    steps = tiled_steps.forward_v1(case, tile.Br, tile.Bc, float_O=True)
    return Launch(config.kernel, tile, case.batch * case.heads, 1), steps


def _v2_forward(config: Config, case: Case, device: Device) -> tuple[Launch, list[Step]]:
    assert isinstance(config.tile, ForwardTile)
    tile, resident = _tile(config, config.tile.block_q, config.tile.block_kv, stages=2), config.tile.min_ctas
    grid = case.batch * case.heads * -(-case.Nq // tile.Br)
    splits = configs.choose_splits(grid, -(-case.Nk // tile.Bc), (device.sms or 1) * resident)
    steps = tiled_steps.forward_v2(case, tile.Br, tile.Bc, splits=splits)
    return Launch(config.kernel, tile, grid * splits, resident), steps


def _backward(config: Config, case: Case) -> Launch:
    """dK and dV of a tile of keys, S and dP of a step, and a tile of dQ are the sums. v1 has a CTA a kv head."""
    assert isinstance(config.tile, BackwardTile)
    Br, Bc, d = config.tile.block_q, config.tile.block_kv, config.d
    tile = _tile(config, Br, Bc, config.tile.stages, accumulators=2 * Bc * d + 2 * Br * Bc + Br * d)
    key_tiles = 1 if config.kernel.startswith("flash_v1") else -(-case.Nk // Bc)
    return Launch(config.kernel, tile, case.batch * case.kv_heads * key_tiles, config.tile.min_ctas)
