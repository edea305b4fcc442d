"""cuda-v1 as torch operators, so that autograd, torch.compile and CUDA graphs see it. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fabench_backends.cuda_flash import backward as shared
from fabench_backends.cuda_flash.api import aligned, band, check, loaded, mask_kind, strides
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
    check(q, k, v, MAX_D)
    low, high = band(q.shape[2], k.shape[2], causal, None, alignment)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    O, LSE = forward(q, k, v, scale, low, high)
    return (O, LSE) if return_lse else O


@torch.library.custom_op("fabench::cuda_v1_forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    """(O, LSE). Beyond them it allocates O, m and l in float32, which travel between the loops' steps."""
    batch, heads, Nq, d = q.shape
    Nk, dv = k.shape[2], v.shape[3]
    q, k, v = aligned(q), aligned(k), aligned(v)
    with torch.cuda.device(q.device):
        O = torch.empty(batch, heads, Nq, dv, dtype=q.dtype, device=q.device)
        LSE = torch.empty(batch, heads, Nq, dtype=torch.float32, device=q.device)
        if LSE.numel() == 0:
            return O, LSE
        O_hbm = torch.empty(batch, heads, Nq, dv, dtype=torch.float32, device=q.device)
        rows = torch.empty(2, batch, heads, Nq, dtype=torch.float32, device=q.device)
        loaded("flash_v1_fwd", q, max(d, dv), mask_kind(low, high))(
            (batch * heads, 1, 1),
            V1ForwardParams(
                q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=O.data_ptr(), lse=LSE.data_ptr(),
                o_hbm=O_hbm.data_ptr(), m_hbm=rows[0].data_ptr(), l_hbm=rows[1].data_ptr(), **strides(q=q, k=k, v=v),
                heads=heads, group=heads // k.shape[1], Nq=Nq, Nk=Nk, d=d, dv=dv, low=low, high=high, scale=scale,
            ),
        )  # fmt: skip
    return O, LSE


@forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    batch, heads, Nq, _d = q.shape
    return q.new_empty(batch, heads, Nq, v.shape[3]), q.new_empty(batch, heads, Nq, dtype=torch.float32)


@torch.library.custom_op("fabench::cuda_v1_backward", mutates_args=())
def backward(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, low: int, high: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous."""
    return shared.backward("flash_v1_bwd", dO, dLSE, q, k, v, O, LSE, scale=scale, low=low, high=high)


@backward.register_fake
def _(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, low: int, high: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dO: Tensor | None, dLSE: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, O, LSE = ctx.saved_tensors
    grads = backward(torch.zeros_like(O) if dO is None else dO, dLSE, q, k, v, O, LSE, *ctx.options)
    return (*grads, *(None for _ in ctx.options))


forward.register_autograd(_differentiate, setup_context=_save)
