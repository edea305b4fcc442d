"""`attention`: the contract's function over the kernels, which autograd, torch.compile and CUDA graphs see.

It launches on the current stream. Gradients flow through O and through LSE.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from fabench.attention_op import AttentionOp, Layout, is_eager, layout, window_of
from fabench_backends.triton_flash.checks import Band, Window, band, check_device, check_tensors, factors
from fabench_backends.triton_flash.launch import plan


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offset: int, left: int, right: int, scale: float, softcap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE); the mask as in `checks.Band`. Raises ValueError for what the kernels do not take, before any launch."""
    return plan(layout(q), layout(k), layout(v), Band(offset, left, right), scale, softcap).forward(q, k, v)


def backward(
    do: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
    lse: torch.Tensor, offset: int, left: int, right: int, scale: float, softcap: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dQ, dK, dV) from what `forward` returned."""
    found = plan(layout(q), layout(k), layout(v), Band(offset, left, right), scale, softcap)
    return found.backward(q, k, v, o, lse, do, dlse)


op = AttentionOp("triton_flash", forward, backward)


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
    resolve = remembered if is_eager(q, k, v) else numbers
    found = resolve(layout(q), layout(k), layout(v), causal, scale, window_of(window), softcap, alignment)
    o, lse = op(q, k, v, *found)
    return (o, lse) if return_lse else o


def numbers(
    q: Layout, k: Layout, v: Layout, causal: bool, scale: float | None, window: Window | None, softcap: float,
    alignment: str,
) -> tuple[int, int, int, float, float]:  # fmt: skip
    """The problem as the operators take it. Raises ValueError as `attention` does."""
    check_tensors(q, k, v)
    check_device(q, max(q.shape[3], v.shape[3]))
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    factors(scale, softcap)
    return *band(q.shape[2], k.shape[2], causal, window, alignment), scale, float(softcap)


remembered = lru_cache(maxsize=1024)(numbers)
