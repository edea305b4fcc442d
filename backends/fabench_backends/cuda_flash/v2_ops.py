"""cuda-v2 as a function that autograd, torch.compile and CUDA graphs see. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fabench.attention_op import AttentionOp, Layout, check_numbers, is_eager, layout, on, window_of
from fabench.launch_order import side_by_side
from fabench_backends.cuda_flash import backward as shared
from fabench_backends.cuda_flash.api import (
    MAX_GRID_Y,
    aligned,
    band,
    ceil_div,
    check,
    dense,
    helper,
    is_aligned,
    loaded,
    mask_kind,
    strides,
)
from fabench_backends.cuda_flash.configs import choose_splits
from fabench_backends.cuda_flash.params import ForwardParams

MAX_D = 256
Window = tuple[int, int]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float = 0.0,
    alignment: str = "bottom_right",
    return_lse: bool = False,
    deterministic: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """O = softmax(scale Q K^T + mask) V by cuda-v2, and with `return_lse` also the LSE.

    q [batch, heads, Nq, d]; k [batch, kv_heads, Nk, d]; v [batch, kv_heads, Nk, dv]; fp16 or bf16; d and dv multiples
    of 8 up to 256; any strides with a last one of 1 (rows that do not start at multiples of 16 bytes are copied first).
    O is [batch, heads, Nq, dv], contiguous; LSE [batch, heads, Nq] float32. `deterministic` makes dQ bitwise
    repeatable; the other results always are. Raises ValueError, before any launch, for what it cannot do.
    """
    resolve = remembered if is_eager(q, k, v) else numbers
    found = resolve(layout(q), layout(k), layout(v), causal, scale, window_of(window), softcap, alignment)
    O, LSE = op(q, k, v, *found, deterministic)
    return (O, LSE) if return_lse else O


def numbers(
    q: Layout, k: Layout, v: Layout, causal: bool, scale: float | None, window: Window | None, softcap: float,
    alignment: str,
) -> tuple[float, float, int, int]:  # fmt: skip
    """(scale, softcap, low, high) as the operators take them. Raises ValueError as `attention` does."""
    check(q, k, v, MAX_D)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    check_numbers(scale, softcap)
    return scale, float(softcap), *band(q.shape[2], k.shape[2], causal, window, alignment)


remembered = lru_cache(maxsize=1024)(numbers)


@dataclass(frozen=True)
class Plan:
    """What follows from the layouts: kernels, grids, all parameters but addresses."""

    main: shared.Launch
    grid: shared.Grid
    params: ForwardParams
    combine: shared.Launch | None
    """Merges the splits, where there is more than one."""
    combine_grid: shared.Grid


@lru_cache(maxsize=1024)
def plan(q: Layout, k: Layout, v: Layout, scale: float, softcap: float, low: int, high: int) -> Plan | None:
    """How the forward is launched for tensors of these layouts; None if some must be copied first.

    Raises ValueError as `attention` does.
    """
    check(q, k, v, MAX_D)
    if not all(map(is_aligned, (q, k, v))):
        return None
    batch, heads, Nq, d = q.shape
    Nk, dv = k.shape[2], v.shape[3]
    full = mask_kind(low, high) == "none"
    main = loaded("flash_v2_fwd", q, max(d, dv), mask_kind(low, high, softcap))
    tile: Any = main.config.tile
    q_tiles = ceil_div(Nq, tile.block_q)
    if q_tiles > MAX_GRID_Y:
        raise ValueError(f"q must have at most {MAX_GRID_Y * tile.block_q} rows with head dim {d}, got {Nq}")
    card = torch.cuda.get_device_properties(q.device)
    slots = card.multi_processor_count * tile.min_ctas
    splits = choose_splits(batch * heads * q_tiles, ceil_div(Nk, tile.block_kv), slots)
    combine = helper("flash_fwd_combine", q) if splits > 1 else None
    warps = combine.config.tile.threads // 32 if combine else 1
    group = heads // k.shape[1]
    kv_bytes = Nk * (d + dv) * q.dtype.itemsize
    wide = side_by_side(batch * heads, group, kv_bytes, card.L2_cache_size) if full else batch * heads
    return Plan(
        main,
        (batch * heads, q_tiles, splits) if splits > 1 else (wide, q_tiles, ceil_div(batch * heads, wide)),
        ForwardParams(
            batch=batch, heads=heads, group=group, Nq=Nq, Nk=Nk, d=d, dv=dv, low=low, high=high,
            splits=splits, scale=scale, softcap=softcap, **strides(q=q, k=k, v=v, o=dense(q, batch, heads, Nq, dv)),
        ),
        combine,
        (batch * heads, min(ceil_div(Nq, warps), MAX_GRID_Y), 1),
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, low: int, high: int, deterministic: bool
) -> tuple[Tensor, Tensor]:
    """(O, LSE). `deterministic` only matters to the backward."""
    batch, heads, Nq, _ = q.shape
    O = torch.empty((batch, heads, Nq, v.shape[3]), dtype=q.dtype, device=q.device)
    LSE = torch.empty((batch, heads, Nq), dtype=torch.float32, device=q.device)
    if LSE.numel() == 0:
        return O, LSE
    found = plan(layout(q), layout(k), layout(v), scale, softcap, low, high)
    if found is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        q, k, v = aligned(q), aligned(k), aligned(v)
        found = plan(layout(q), layout(k), layout(v), scale, softcap, low, high)
    assert found is not None
    params = ForwardParams.from_buffer_copy(found.params)
    params.q, params.k, params.v, params.o, params.lse = (t.data_ptr() for t in (q, k, v, O, LSE))
    with on(q.device):
        if found.combine is None:
            found.main(found.grid, params)
        else:
            partial = torch.empty((params.splits, *O.shape), dtype=torch.float32, device=q.device)
            partial_lse = torch.empty((params.splits, *LSE.shape), dtype=torch.float32, device=q.device)
            params.o_partial, params.lse_partial = partial.data_ptr(), partial_lse.data_ptr()
            found.main(found.grid, params)
            found.combine(found.combine_grid, params)
    return O, LSE


def backward(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, softcap: float, low: int, high: int, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous."""
    return shared.backward(
        "flash_v2_bwd", dO, dLSE, q, k, v, O, LSE,
        scale=scale, softcap=softcap, low=low, high=high, deterministic=deterministic,
    )  # fmt: skip


op = AttentionOp("cuda_v2", forward, backward)
