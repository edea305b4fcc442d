"""cuda-v1 as a function that autograd, torch.compile and CUDA graphs see. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fabench.attention_op import AttentionOp, Layout, check_numbers, is_eager, layout, on
from fabench_backends.cuda_flash import backward as shared
from fabench_backends.cuda_flash.api import (
    aligned,
    band,
    check,
    is_aligned,
    loaded,
    mask_kind,
    strides,
)
from fabench_backends.cuda_flash.params import V1ForwardParams

MAX_D = 128


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    alignment: str = "bottom_right",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """O = softmax(scale Q K^T + mask) V by cuda-v1, and with `return_lse` also the LSE.

    As v2_ops.attention, but d and dv up to 128, and neither windows nor softcap. All results are bitwise repeatable.
    """
    resolve = remembered if is_eager(q, k, v) else numbers
    O, LSE = op(q, k, v, *resolve(layout(q), layout(k), layout(v), causal, scale, alignment))
    return (O, LSE) if return_lse else O


def numbers(
    q: Layout, k: Layout, v: Layout, causal: bool, scale: float | None, alignment: str
) -> tuple[float, int, int]:
    """(scale, low, high) as the operators take them. Raises ValueError as `attention` does."""
    check(q, k, v, MAX_D)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    check_numbers(scale, 0.0)
    return scale, *band(q.shape[2], k.shape[2], causal, None, alignment)


remembered = lru_cache(maxsize=1024)(numbers)


@dataclass(frozen=True)
class Plan:
    """What follows from the layouts: the kernel, its grid, all parameters but addresses."""

    main: shared.Launch
    grid: shared.Grid
    params: V1ForwardParams


@lru_cache(maxsize=1024)
def plan(q: Layout, k: Layout, v: Layout, scale: float, low: int, high: int) -> Plan | None:
    """How the forward is launched for tensors of these layouts; None if some must be copied first.

    Raises ValueError as `attention` does.
    """
    check(q, k, v, MAX_D)
    if not all(map(is_aligned, (q, k, v))):
        return None
    batch, heads, Nq, d = q.shape
    Nk, dv = k.shape[2], v.shape[3]
    return Plan(
        loaded("flash_v1_fwd", q, max(d, dv), mask_kind(low, high)),
        (batch * heads, 1, 1),
        V1ForwardParams(
            heads=heads, group=heads // k.shape[1], Nq=Nq, Nk=Nk, d=d, dv=dv, low=low, high=high, scale=scale,
            **strides(q=q, k=k, v=v),
        ),
    )  # fmt: skip


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    """(O, LSE). Beyond them it allocates O, m and l in float32, which travel between the loops' steps."""
    batch, heads, Nq, _ = q.shape
    O = torch.empty((batch, heads, Nq, v.shape[3]), dtype=q.dtype, device=q.device)
    LSE = torch.empty((batch, heads, Nq), dtype=torch.float32, device=q.device)
    if LSE.numel() == 0:
        return O, LSE
    found = plan(layout(q), layout(k), layout(v), scale, low, high)
    if found is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16:
        q, k, v = aligned(q), aligned(k), aligned(v)
        found = plan(layout(q), layout(k), layout(v), scale, low, high)
    assert found is not None
    O_hbm = torch.empty(O.shape, dtype=torch.float32, device=q.device)
    rows = torch.empty((2, *LSE.shape), dtype=torch.float32, device=q.device)
    params = V1ForwardParams.from_buffer_copy(found.params)
    params.q, params.k, params.v, params.o, params.lse = (t.data_ptr() for t in (q, k, v, O, LSE))
    params.o_hbm, params.m_hbm = O_hbm.data_ptr(), rows.data_ptr()
    params.l_hbm = params.m_hbm + rows.numel() * 2  # the second half
    with on(q.device):
        found.main(found.grid, params)
    return O, LSE


def backward(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, low: int, high: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous."""
    return shared.backward("flash_v1_bwd", dO, dLSE, q, k, v, O, LSE, scale=scale, low=low, high=high)


op = AttentionOp("cuda_v1", forward, backward)
