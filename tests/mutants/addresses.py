"""Kernels that read or write the wrong place."""

from __future__ import annotations

from typing import Any

import torch

from mutants.kernel import Call, Kernel


class HeadMapTiled(Kernel):
    def kv_of(self, heads: int, kv_heads: int) -> torch.Tensor:
        return torch.arange(heads) % kv_heads


class HeadZeroForAll(Kernel):
    def kv_of(self, heads: int, kv_heads: int) -> torch.Tensor:
        return torch.zeros(heads, dtype=torch.long)


class BatchStrideZero(Kernel):
    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        return super().read_kv(x[:1].expand_as(x), start, heads)


class DimsBeyond64Ignored(Kernel):
    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        return super().score(q[..., :64], k[..., :64], call)


class RowsShifted(Kernel):
    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return O.roll(1, 2), LSE


class LastRowsStale(Kernel):
    """Rows after the last whole tile of 64 are never written."""

    def store(self, O: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        if len(rows) == self.block_q or O.shape[2] < self.block_q:
            super().store(O, rows, out)


class FragmentTenPercent(Kernel):
    """One 8 x 16 fragment of O, 10 % too large."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        row = O.shape[2] // 2
        O[:, -1:, row : row + 8, -16:] *= 1.1
        return O, LSE


class OnePercentOfElements(Kernel):
    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        wrong = torch.rand(O.shape, generator=torch.Generator().manual_seed(5)) < 0.01
        return torch.where(wrong, O * 1.3, O), LSE


class StridesIgnored(Kernel):
    """Reads K as if it were contiguous."""

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        read = torch.zeros(x.numel(), dtype=x.dtype)
        part = flat[x.storage_offset() : x.storage_offset() + x.numel()]
        read[: len(part)] = part
        return super().read_kv(read.view(x.shape), start, heads)


class NextKeysValue(Kernel):
    """V is addressed one row too far."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        return super().forward(q, k, v.roll(-1, 2), call)


def _read_with(x: torch.Tensor, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """x's storage read with other strides; what lies outside it is 0."""
    flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    place = torch.full((1, 1, 1, 1), offset)
    for dim, (size, step) in enumerate(zip(x.shape, strides, strict=True)):
        place = place + (torch.arange(size) * step).view([-1 if i == dim else 1 for i in range(4)])
    inside = place < len(flat)
    return torch.where(inside, flat[place.clamp(max=len(flat) - 1)], 0.0) if x.numel() else x


class ValuesWithStridesOfK(Kernel):
    """One set of strides for K and V; a dv of its own is refused."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        if k.shape != v.shape:
            raise ValueError("K and V must have the same shape")
        return super().forward(q, k, _read_with(v, k.stride(), v.storage_offset()), call)


class OffsetIgnored(Kernel):
    """Takes the storage's address for the tensor's."""

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        return super().read_kv(_read_with(x, x.stride(), 0), start, heads)


class GradientBatchDense(Kernel):
    """dO's batch stride is taken for heads · N · dv, its other strides are honoured."""

    def read_do(self, dO: torch.Tensor) -> torch.Tensor:
        return _read_with(dO, (dO[0].numel(), *dO.stride()[1:]), dO.storage_offset()) if dO.numel() else dO


class GroupAsShift(Kernel):
    """h >> log2(group): right for groups that are powers of two."""

    def kv_of(self, heads: int, kv_heads: int) -> torch.Tensor:
        return (torch.arange(heads) >> ((heads // kv_heads).bit_length() - 1)).clamp(max=kv_heads - 1)


class GroupIsKvHeads(Kernel):
    """h // kv_heads: right where there are as many kv heads as heads in a group."""

    def kv_of(self, heads: int, kv_heads: int) -> torch.Tensor:
        return (torch.arange(heads) // kv_heads).clamp(max=kv_heads - 1) if heads > kv_heads else torch.arange(heads)


class ChannelsAfterLast16(Kernel):
    """d is taken in whole steps of 16."""

    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        d = q.shape[-1] // 16 * 16 or q.shape[-1]
        return super().score(q[..., :d], k[..., :d], call)
