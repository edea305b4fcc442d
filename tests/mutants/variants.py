"""Kernels that are right in different ways: what no rule may blame."""

from __future__ import annotations

import math
from typing import Any

import torch

from mutants.kernel import NEG, Call, Kernel


class SmallTiles(Kernel):
    block_q, block_k = 16, 16


class LargeTiles(Kernel):
    block_q, block_k = 256, 256


class Reversed(Kernel):
    """Keys are visited from the last tile to the first."""

    reverse = True


class Exp2(Kernel):
    exp2 = True


class FoldedScale(Kernel):
    """exp2 of scores multiplied by scale · log2 e in one step."""

    def update(self, m: Any, l: Any, acc: Any, s: Any, V: Any, dtype: torch.dtype) -> Any:
        factor = math.log2(math.e)
        m2, l, acc = super().update(m * factor, l, acc, s * factor, V, dtype)
        return m2 / factor, l, acc

    def exp(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp2(x)


class SumOfRoundedP(Kernel):
    """l adds up what the second GEMM reads; such a kernel has no LSE to give."""

    sum_rounded_p = True

    def __call__(self, q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None) -> Any:
        return super().__call__(q, k, v, causal, scale)


class DeferredRescale(Kernel):
    """O and l are rescaled only when the maximum grows by more than 8."""

    rescale_above = 8.0


class TwoPass(Kernel):
    """The maximum and the sum first, then P once."""

    def rows(self, q: Any, k: Any, v: Any, rows: torch.Tensor, call: Call) -> Any:
        heads = self.kv_of(q.shape[1], k.shape[1])
        tiles = []
        for j0 in self.key_tiles(k.shape[2], 0):
            K = self.read_kv(k, j0, heads)
            s = self.cap(self.score(q[:, :, rows], K, call), call)
            keys = torch.arange(j0, j0 + K.shape[2])
            tiles.append((j0, s.masked_fill(self.hidden(rows, keys, call), NEG)))
        shape = (q.shape[0], q.shape[1], len(rows), 1)
        m, l, acc = torch.full(shape, NEG), torch.zeros(shape), torch.zeros(*shape[:3], v.shape[-1])
        for _, s in tiles:
            m = torch.maximum(m, s.amax(-1, keepdim=True))
        shift = torch.where(m == NEG, 0.0, m)
        for j0, s in tiles:
            p = torch.exp(s - shift)
            l = l + p.sum(-1, keepdim=True)
            acc = acc + self.to_p(p, q.dtype) @ self.read_kv(v, j0, heads).float()
        return m, l, acc


class LseFirst(Kernel):
    """LSE in a first pass, then P = exp(S - LSE), rounded as it is: nothing is divided."""

    def rows(self, q: Any, k: Any, v: Any, rows: torch.Tensor, call: Call) -> Any:
        m, l, acc = super().rows(q, k, v, rows, call)
        lse = self.lse(m, l)
        shift = torch.where(lse == NEG, 0.0, lse)
        heads, acc = self.kv_of(q.shape[1], k.shape[1]), torch.zeros_like(acc)
        for j0 in self.key_tiles(k.shape[2], 0):
            K, V = self.read_kv(k, j0, heads), self.read_kv(v, j0, heads)
            s = self.cap(self.score(q[:, :, rows], K, call), call)
            s = s.masked_fill(self.hidden(rows, torch.arange(j0, j0 + K.shape[2]), call), NEG)
            acc = acc + self.to_p(torch.exp(s - shift), q.dtype) @ V.float()
        return lse, torch.where(l != 0, 1.0 + 0.0 * l, 0.0), acc


class HeadsRoundedFirst(Kernel):
    """dK and dV are rounded by query head and then summed, as where the kernel writes expanded gradients."""

    def group(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return super().group(x.to(like.dtype).float(), like)


class SquareOnly(Kernel):
    """Refuses what is not square."""

    def __call__(self, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"Nq = {q.shape[2]} must be Nk = {k.shape[2]}")
        return super().__call__(q, k, v, *args, **kwargs)


class SplitKv(Kernel):
    """Three parts of the keys by themselves, merged by their LSE."""

    def rows(self, q: Any, k: Any, v: Any, rows: torch.Tensor, call: Call) -> Any:
        parts = []
        starts = self.key_tiles(k.shape[2], 0)
        for i in range(3):
            self.mine = starts[i::3]
            parts.append(super().rows(q, k, v, rows, call))
        del self.mine
        m = torch.stack([p[0] for p in parts]).amax(0)
        shift = torch.where(m == NEG, 0.0, m)
        weights = [torch.exp(p[0] - shift) for p in parts]
        l = sum(w * p[1] for w, p in zip(weights, parts, strict=True))
        acc = sum(w * p[2] for w, p in zip(weights, parts, strict=True))
        return m, l, acc

    def key_tiles(self, Nk: int, first_row: int) -> list[int]:
        return self.mine if hasattr(self, "mine") else super().key_tiles(Nk, first_row)


class FlushedExp(Kernel):
    """exp gives 0 below the smallest normal number, as the hardware's does."""

    def exp(self, x: torch.Tensor) -> torch.Tensor:
        p = super().exp(x)
        return torch.where(p < torch.finfo(torch.float32).tiny, 0.0, p)

    exp_backward = exp


class Right(Kernel):
    """The kernel itself."""


VARIANTS: dict[str, Kernel] = {
    c.__name__: c()
    for c in (
        Right,
        SmallTiles,
        LargeTiles,
        Reversed,
        Exp2,
        FoldedScale,
        SumOfRoundedP,
        DeferredRescale,
        TwoPass,
        SplitKv,
        LseFirst,
        HeadsRoundedFirst,
        FlushedExp,
        SquareOnly,
    )
}
