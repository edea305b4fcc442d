"""cuda-v2 as torch operators, so that autograd, torch.compile and CUDA graphs see it. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fabench_backends.cuda_flash import backward as shared
from fabench_backends.cuda_flash.api import aligned, band, ceil_div, check, helper, loaded, mask_kind, strides
from fabench_backends.cuda_flash.configs import choose_splits
from fabench_backends.cuda_flash.params import ForwardParams

MAX_D = 256


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
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
    if not 0 <= softcap < float("inf"):
        raise ValueError(f"softcap must be 0 (off) or a positive number, got {softcap}")
    check(q, k, v, MAX_D)
    low, high = band(q.shape[2], k.shape[2], causal, window, alignment)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    O, LSE = forward(q, k, v, scale, float(softcap), low, high, deterministic)
    return (O, LSE) if return_lse else O


@torch.library.custom_op("fabench::cuda_v2_forward", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, low: int, high: int, deterministic: bool
) -> tuple[Tensor, Tensor]:
    """(O, LSE). `deterministic` only matters to the backward."""
    batch, heads, Nq, d = q.shape
    Nk, dv = k.shape[2], v.shape[3]
    q, k, v = aligned(q), aligned(k), aligned(v)
    with torch.cuda.device(q.device):
        O = torch.empty(batch, heads, Nq, dv, dtype=q.dtype, device=q.device)
        LSE = torch.empty(batch, heads, Nq, dtype=torch.float32, device=q.device)
        if LSE.numel() == 0:
            return O, LSE
        main = loaded("flash_v2_fwd", q, max(d, dv), mask_kind(low, high, softcap))
        tile: Any = main.config.tile
        q_tiles = ceil_div(Nq, tile.block_q)
        slots = torch.cuda.get_device_properties(q.device).multi_processor_count * tile.min_ctas
        splits = choose_splits(batch * heads * q_tiles, ceil_div(Nk, tile.block_kv), slots)
        partial = torch.empty(splits if splits > 1 else 0, batch, heads, Nq, dv, dtype=torch.float32, device=q.device)
        partial_lse = torch.empty(partial.shape[:-1], dtype=torch.float32, device=q.device)
        params = ForwardParams(
            q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=O.data_ptr(), lse=LSE.data_ptr(),
            o_partial=partial.data_ptr(), lse_partial=partial_lse.data_ptr(), **strides(q=q, k=k, v=v, o=O),
            batch=batch, heads=heads, group=heads // k.shape[1], Nq=Nq, Nk=Nk, d=d, dv=dv, low=low, high=high,
            splits=splits, scale=scale, softcap=softcap,
        )  # fmt: skip
        main((batch * heads, q_tiles, splits), params)
        if splits > 1:
            combine = helper("flash_fwd_combine", q)
            tiles = ceil_div(Nq, combine.config.tile.threads // 32)
            combine((batch * heads, min(tiles, shared.MAX_GRID_Y), 1), params)
    return O, LSE


@forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, low: int, high: int, deterministic: bool
) -> tuple[Tensor, Tensor]:
    batch, heads, Nq, _d = q.shape
    return q.new_empty(batch, heads, Nq, v.shape[3]), q.new_empty(batch, heads, Nq, dtype=torch.float32)


@torch.library.custom_op("fabench::cuda_v2_backward", mutates_args=())
def backward(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, softcap: float, low: int, high: int, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dQ, dK, dV), contiguous."""
    return shared.backward(
        "flash_v2_bwd", dO, dLSE, q, k, v, O, LSE,
        scale=scale, softcap=softcap, low=low, high=high, deterministic=deterministic,
    )  # fmt: skip


@backward.register_fake
def _(
    dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor,
    scale: float, softcap: float, low: int, high: int, deterministic: bool,
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
