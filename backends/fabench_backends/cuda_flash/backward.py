"""The backward of both versions: delta, the version's main kernel, dQ rounded. Only that kernel and its grid differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fabench_backends.cuda_flash.api import aligned, ceil_div, helper, loaded, mask_kind, strides
from fabench_backends.cuda_flash.configs import Config
from fabench_backends.cuda_flash.params import BackwardParams, FinishParams, PrepareParams

MAX_GRID_Y = 65535


def backward(
    kernel: str, dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor, *,
    scale: float, softcap: float = 0.0, low: int, high: int, deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous, by the main kernel `kernel`.

    Beyond the inputs and outputs it allocates, in float32: dQ's sums, and two numbers a row (LSE and delta).
    """
    batch, heads, Nq, d = q.shape
    kv_heads, Nk, dv = k.shape[1], k.shape[2], v.shape[3]
    q, k, v, dO, O = aligned(q), aligned(k), aligned(v), aligned(dO), aligned(O)
    with torch.cuda.device(q.device):
        dQ = torch.empty(batch, heads, Nq, d, dtype=q.dtype, device=q.device)
        dK = torch.empty(batch, kv_heads, Nk, d, dtype=q.dtype, device=q.device)
        dV = torch.empty(batch, kv_heads, Nk, dv, dtype=q.dtype, device=q.device)
        if LSE.numel() == 0 or dK.numel() == 0:
            return dQ.zero_(), dK.zero_(), dV.zero_()
        main = loaded(kernel, q, max(d, dv), mask_kind(low, high, softcap))
        padded = ceil_div(Nq, 128) * 128
        rows = torch.empty(2, batch, heads, padded, dtype=torch.float32, device=q.device)
        sums = torch.empty(batch, heads, Nq, d, dtype=torch.float32, device=q.device)
        turn = None
        if deterministic:
            tile: Any = main.config.tile
            tiles = ceil_div(Nq, tile.block_q)
            turn = torch.zeros(batch, heads, tiles, tile.warps, dtype=torch.int32, device=q.device)
        if dLSE is not None:
            dLSE = dLSE.to(torch.float32).contiguous()
        _prepare(O, dO, LSE, dLSE, rows, sums)
        main(
            grid(main.config, batch * kv_heads, Nk),
            BackwardParams(
                q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), dO=dO.data_ptr(), lse2=rows[0].data_ptr(),
                delta=rows[1].data_ptr(), dq=sums.data_ptr(), dk=dK.data_ptr(), dv=dV.data_ptr(),
                turn=None if turn is None else turn.data_ptr(), **strides(q=q, k=k, v=v, dO=dO),
                batch=batch, heads=heads, group=heads // kv_heads, Nq=Nq, Nk=Nk, Nq_padded=padded, d_qk=d, d_v=dv,
                low=low, high=high, scale=scale, softcap=softcap,
            ),
        )  # fmt: skip
        finish = helper("flash_bwd_finish", q)
        blocks = ceil_div(sums.numel(), finish.config.tile.threads * 8)
        finish(
            (min(blocks, 1 << 20), 1, 1),
            FinishParams(sums=sums.data_ptr(), out=dQ.data_ptr(), count=sums.numel(), scale=scale),
        )
    return dQ, dK, dV


def grid(config: Config, kv_heads: int, Nk: int) -> tuple[int, int, int]:
    """v1: a CTA a head. v2: a CTA a tile of keys."""
    tile: Any = config.tile
    if config.kernel.startswith("flash_v1"):
        return kv_heads, 1, 1
    return kv_heads, ceil_div(Nk, tile.block_kv), 1


def _prepare(O: Tensor, dO: Tensor, LSE: Tensor, dLSE: Tensor | None, rows: Tensor, sums: Tensor) -> None:
    """rows := (LSE in log2 units, delta), sums := 0."""
    batch, heads, Nq, d = sums.shape
    prepare = helper("flash_bwd_prepare", O)
    params = PrepareParams(
        o=O.data_ptr(), dO=dO.data_ptr(), lse=LSE.data_ptr(), dlse=None if dLSE is None else dLSE.data_ptr(),
        lse2=rows[0].data_ptr(), delta=rows[1].data_ptr(), dq=sums.data_ptr(), **strides(o=O, dO=dO),
        heads=heads, Nq=Nq, Nq_padded=rows.shape[3], d_qk=d, d_v=O.shape[3],
    )  # fmt: skip
    tiles = ceil_div(rows.shape[3], prepare.config.tile.threads // 32)
    prepare((batch * heads, min(tiles, MAX_GRID_Y), 1), params)
