"""The backward of both versions: delta, the version's main kernel, dQ rounded. Only that kernel and its grid differ."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fabench.attention_op import Layout, layout, on
from fabench_backends.cuda_flash.api import (
    MAX_GRID_Y,
    aligned,
    ceil_div,
    helper,
    is_aligned,
    loaded,
    mask_kind,
    strides,
)
from fabench_backends.cuda_flash.configs import Config
from fabench_backends.cuda_flash.params import BackwardParams, FinishParams, PrepareParams

Grid = tuple[int, int, int]
Launch = Callable[[Grid, ctypes.Structure], None]


@dataclass(frozen=True)
class Plan:
    """What follows from the layouts: kernels, grids, all parameters but addresses."""

    padded: int
    """Nq up to a multiple of 128: rows past Nq see no key."""
    turns: tuple[int, ...]
    prepare: Launch
    main: Launch
    finish: Launch
    grids: tuple[Grid, Grid, Grid]
    params: tuple[PrepareParams, BackwardParams, FinishParams]


@lru_cache(maxsize=1024)
def plan(
    kernel: str, dO: Layout, q: Layout, k: Layout, v: Layout, O: Layout, scale: float, softcap: float, low: int,
    high: int,
) -> Plan | None:  # fmt: skip
    """How `kernel` and its helpers are launched for tensors of these layouts; None if some must be copied first."""
    if not all(map(is_aligned, (dO, q, k, v, O))):
        return None
    batch, heads, Nq, d = q.shape
    kv_heads, Nk, dv = k.shape[1], k.shape[2], v.shape[3]
    main = loaded(kernel, q, max(d, dv), mask_kind(low, high, softcap))
    prepare, finish = helper("flash_bwd_prepare", q), helper("flash_bwd_finish", q)
    tile: Any = main.config.tile
    grid_y = grid(main.config, batch * kv_heads, Nk)[1]
    if grid_y > MAX_GRID_Y:
        raise ValueError(f"k must have at most {MAX_GRID_Y * tile.block_kv} rows with head dim {d}, got {Nk}")
    padded, numbers = ceil_div(Nq, 128) * 128, batch * heads * Nq * d
    return Plan(
        padded,
        (batch, heads, ceil_div(Nq, tile.block_q), tile.warps),
        prepare,
        main,
        finish,
        (
            (batch * heads, min(ceil_div(padded, prepare.config.tile.threads // 32), MAX_GRID_Y), 1),
            grid(main.config, batch * kv_heads, Nk),
            (min(ceil_div(numbers, finish.config.tile.threads * 8), 1 << 20), 1, 1),
        ),
        (
            PrepareParams(heads=heads, Nq=Nq, Nq_padded=padded, d_qk=d, d_v=dv, **strides(o=O, dO=dO)),
            BackwardParams(
                batch=batch, heads=heads, group=heads // kv_heads, Nq=Nq, Nk=Nk, Nq_padded=padded, d_qk=d, d_v=dv,
                low=low, high=high, scale=scale, softcap=softcap, **strides(q=q, k=k, v=v, dO=dO),
            ),
            FinishParams(count=numbers, scale=scale),
        ),
    )  # fmt: skip


def backward(
    kernel: str, dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor, *,
    scale: float, softcap: float = 0.0, low: int, high: int, deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous, by the main kernel `kernel`.

    Beyond the inputs and outputs it allocates, in float32: dQ's sums, and two numbers a row (LSE and delta).
    """
    dQ, dK, dV = (torch.empty(t.shape, dtype=q.dtype, device=q.device) for t in (q, k, v))
    if LSE.numel() == 0 or dK.numel() == 0:
        return dQ.zero_(), dK.zero_(), dV.zero_()
    layouts = [layout(t) for t in (dO, q, k, v, O)]
    found = plan(kernel, *layouts, scale, softcap, low, high)
    if found is None or (dO.data_ptr() | q.data_ptr() | k.data_ptr() | v.data_ptr() | O.data_ptr()) % 16:
        dO, q, k, v, O = map(aligned, (dO, q, k, v, O))
        found = plan(kernel, *map(layout, (dO, q, k, v, O)), scale, softcap, low, high)
    assert found is not None
    rows = torch.empty((2, LSE.numel() // q.shape[2], found.padded), dtype=torch.float32, device=q.device)
    sums = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    turn = torch.zeros(found.turns, dtype=torch.int32, device=q.device) if deterministic else None
    if dLSE is not None:
        dLSE = dLSE.to(torch.float32).contiguous()
    lse2 = rows.data_ptr()
    delta = lse2 + rows.numel() * 2  # the second half
    before, main, after = (type(params).from_buffer_copy(params) for params in found.params)
    before.o, before.dO, before.lse, before.dlse = O.data_ptr(), dO.data_ptr(), LSE.data_ptr(), address(dLSE)
    before.lse2, before.delta, before.dq = lse2, delta, sums.data_ptr()
    main.q, main.k, main.v, main.dO = q.data_ptr(), k.data_ptr(), v.data_ptr(), dO.data_ptr()
    main.lse2, main.delta, main.dq, main.turn = lse2, delta, sums.data_ptr(), address(turn)
    main.dk, main.dv = dK.data_ptr(), dV.data_ptr()
    after.sums, after.out = sums.data_ptr(), dQ.data_ptr()
    with on(q.device):
        found.prepare(found.grids[0], before)  # LSE in log2 units, delta, sums := 0
        found.main(found.grids[1], main)
        found.finish(found.grids[2], after)
    return dQ, dK, dV


def address(t: Tensor | None) -> int | None:
    """Where it starts, or null."""
    return None if t is None else t.data_ptr()


def grid(config: Config, kv_heads: int, Nk: int) -> Grid:
    """v1: a CTA a head. v2: a CTA a tile of keys."""
    tile: Any = config.tile
    if config.kernel.startswith("flash_v1"):
        return kv_heads, 1, 1
    return kv_heads, ceil_div(Nk, tile.block_kv), 1
