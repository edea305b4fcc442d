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
