"""`attention`: the contract's function over the kernels, as torch custom operators with autograd.

The operators are opaque to torch.compile (no graph break), launch on the current stream, and can be captured in a
CUDA graph. Gradients flow through O and through LSE.
"""

from __future__ import annotations

from typing import Any

import torch

from fabench_backends.triton_flash.checks import Band, Window, band, check_device, check_tensors, factors
from fabench_backends.triton_flash.launch import Launcher


@torch.library.custom_op("fabench::triton_flash_forward", mutates_args=())
def forward_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offset: int,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) of tensors that fit together; the mask as in `checks.Band`. Raises ValueError if the device does not."""
    check_device(q, max(q.shape[3], v.shape[3]))
    return Launcher(q, k, v, Band(offset, left, right), scale, softcap).forward()


@torch.library.custom_op("fabench::triton_flash_backward", mutates_args=())
def backward_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    dlse: torch.Tensor | None,
    offset: int,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dQ, dK, dV) from what `forward_op` returned."""
    return Launcher(q, k, v, Band(offset, left, right), scale, softcap).backward(o, lse, do, dlse)


@forward_op.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    o = q.new_empty(*q.shape[:3], v.shape[3])
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


@backward_op.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, o, lse = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(o)
    return (*backward_op(q, k, v, o, lse, do, dlse, *ctx.numbers), None, None, None, None, None)


forward_op.register_autograd(_differentiate, setup_context=_save)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float = 0.0,
    alignment: str = "bottom_right",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [batch, heads, Nq, d], k [batch, kv_heads, Nk, d], v [batch, kv_heads, Nk, dv].

    Returns O [batch, heads, Nq, dv], contiguous, in the dtype of q; with `return_lse` also LSE [batch, heads, Nq] in
    fp32, natural logarithm. A query that sees no key has O = 0 and LSE = -inf. `scale` None is 1/sqrt(d); a `window`
    (left, right) is inclusive and centred on the aligned diagonal, -1 unlimited; the cap acts before the mask.

    Raises ValueError, before any launch, for what the kernels do not take: another dtype than fp16, bf16 and fp32;
    head dims that are no multiple of 8 or above 256; a last dimension that is not contiguous; shapes, dtypes or
    devices that do not fit; a GPU below compute capability 8.0; a CPU tensor outside Triton's interpreter.
    """
    check_tensors(q, k, v)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    factors(scale, softcap)
    mask = band(q.shape[2], k.shape[2], causal, window, alignment)
    o, lse = forward_op(q, k, v, *mask, scale, float(softcap))
    return (o, lse) if return_lse else o
