"""Memory orders of the inputs that `Case.layout` has no word for: slices, offsets, expanded heads, odd strides."""

from __future__ import annotations

import torch

from fabench.inputs import Tensors
from fabench.parity.trial import GradientOrder, Order

SLICED_ROWS = 128
"""`sliced`: rows that follow the tensor in its storage, as in K_full[:, :, :-128]."""
FAR_OFFSET = 1 << 31
"""`far_rows`: the last row lies this many elements from the first: 32-bit offsets overflow."""
FIRST_ROW = 8
"""A `sliced` dO begins this many rows into its storage."""
ODD_STRIDE = 12345


def arrange(tensors: Tensors, order: Order, gradient_order: GradientOrder = "plain") -> Tensors:
    """The inputs in another memory order. Values stay, but for what `expanded` means: all kv heads are the first,
    and an expanded dO is one number a batch entry."""
    if order == "expanded_kv":
        first = {name: x[:, :1].expand_as(x) for name, x in (("k", tensors.k), ("v", tensors.v))}
        arranged = Tensors(tensors.q, first["k"], first["v"], tensors.dO)
    elif order == "mixed":  # three tensors, no two with the same strides
        arranged = Tensors(tensors.q, _one(tensors.k, "sliced"), _transposed(tensors.v), tensors.dO)
    else:
        arranged = Tensors(**{name: _one(x, order) if name != "dO" else x for name, x in tensors.items()})
    if arranged.dO is not None:
        arranged.dO = _gradient(arranged.dO, gradient_order)
    return arranged


def _one(x: torch.Tensor, order: Order) -> torch.Tensor:
    batch, heads, N, d = x.shape
    if order == "sliced":
        whole = torch.full((batch, heads, N + SLICED_ROWS, d), torch.nan, dtype=x.dtype, device=x.device)
        return _filled(whole[:, :, :N], x)
    if order in ("offset1", "offset8"):
        offset = int(order.removeprefix("offset"))
        storage = torch.full((x.numel() + 16,), torch.nan, dtype=x.dtype, device=x.device)
        return _filled(storage.as_strided(x.shape, x.contiguous().stride(), offset), x)
    if order == "odd_strides":
        strides = [ODD_STRIDE if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)]
        return x.as_strided(x.shape, strides, x.storage_offset())
    if order == "far_rows" and N > 1:
        step = -(-FAR_OFFSET // (N - 1) // 64) * 64 + 64
        storage = torch.empty((batch * heads * d + (N - 1) * step + d,), dtype=x.dtype, device=x.device)
        return _filled(storage.as_strided(x.shape, (heads * d, d, step, 1), 0), x)
    return x


def _gradient(dO: torch.Tensor, order: GradientOrder) -> torch.Tensor:
    if order == "transposed":
        return _transposed(dO)
    if order == "expanded" and dO.numel():
        return dO[:, :1, :1, :1].expand_as(dO)  # what O.sum().backward() hands over
    if order == "sliced":  # what a loss on some of the rows hands over
        batch, heads, N, d = dO.shape
        whole = torch.full((batch, heads, FIRST_ROW + N, d), torch.nan, dtype=dO.dtype, device=dO.device)
        return _filled(whole[:, :, FIRST_ROW:], dO)
    return dO


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """The same values with the heads next to the channels in memory: [batch, N, heads, d]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _filled(view: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    view.copy_(values)
    return view
