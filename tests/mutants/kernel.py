"""A small right kernel to break: attention tile by tile with an online softmax, forward and backward by hand.

Every step that a mutant changes is a method of `Kernel`. Written for these tests alone: it shares nothing with the
faults that fabench names bugs by, so that naming is a real test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

NEG = float("-inf")


@dataclass
class Call:
    """What one call asks for."""

    causal: bool
    scale: float
    window: tuple[int, int]
    softcap: float
    offset: int
    """Key on the diagonal of query 0."""


class Kernel:
    """The contract's attention; subclasses are mutants and good variants."""

    block_q, block_k = 64, 32
    reverse = False
    exp2 = False
    sum_rounded_p = False
    rescale_above = 0.0
    """Rescale only when the maximum grows by more than this many nats (Blackwell kernels use 8)."""

    # ---- one tile --------------------------------------------------------------------------------------------------

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        """True where query i may not see key j."""
        ahead = j[None, :] - i[:, None] - call.offset
        left, right = call.window
        out = torch.zeros(ahead.shape, dtype=torch.bool)
        if call.causal or right >= 0:
            out |= ahead > (0 if call.causal else right)
        if left >= 0:
            out |= ahead < -left
        return out

    def masked_value(self) -> float:
        return NEG

    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        return (q.float() @ k.float().transpose(-1, -2)) * call.scale

    def cap(self, s: torch.Tensor, call: Call) -> torch.Tensor:
        return call.softcap * torch.tanh(s / call.softcap) if call.softcap else s

    def to_p(self, p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """P as the second GEMM reads it."""
        return p.to(dtype).float()

    def accumulate(self, acc: torch.Tensor, factor: torch.Tensor, pv: torch.Tensor) -> torch.Tensor:
        return acc * factor + pv

    def first_max(self) -> float:
        return NEG

    def key_tiles(self, Nk: int, first_row: int) -> list[int]:
        starts = list(range(0, Nk, self.block_k))
        return starts[::-1] if self.reverse else starts

    def kv_of(self, heads: int, kv_heads: int) -> torch.Tensor:
        return torch.arange(heads) // (heads // kv_heads)

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        """Rows of one tile of K or V, for every query head."""
        return x[:, :, start : start + self.block_k][:, heads]

    # ---- forward ---------------------------------------------------------------------------------------------------

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call
    ) -> tuple[torch.Tensor, torch.Tensor]:
        B, H, Nq, _ = q.shape
        O = q.new_empty(B, H, Nq, v.shape[-1])
        LSE = torch.empty(B, H, Nq, dtype=torch.float32)
        for i0 in range(0, Nq, self.block_q):
            rows = torch.arange(i0, min(i0 + self.block_q, Nq))
            m, l, acc = self.rows(q, k, v, rows, call)
            seen = l != 0  # NaN included: a NaN must not become 0
            out = acc / torch.where(seen, l, 1.0)
            self.store(O, rows, torch.where(seen, out, 0.0))
            LSE[:, :, rows] = self.lse(m, l)[..., 0]
        return O, LSE

    def store(self, O: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        O[:, :, rows] = out.to(O.dtype)

    def lse(self, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
        return torch.where(l != 0, m + torch.log(l), NEG)

    def rows(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, call: Call
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        B, H = q.shape[:2]
        heads = self.kv_of(H, k.shape[1])
        m = torch.full((B, H, len(rows), 1), self.first_max())
        l = torch.zeros(B, H, len(rows), 1)
        acc = torch.zeros(B, H, len(rows), v.shape[-1])
        for j0 in self.key_tiles(k.shape[2], int(rows[0]) if len(rows) else 0):
            K, V = self.read_kv(k, j0, heads), self.read_kv(v, j0, heads)
            keys = torch.arange(j0, j0 + K.shape[2])
            s = self.cap(self.score(q[:, :, rows], K, call), call)
            s = s.masked_fill(self.hidden(rows, keys, call), self.masked_value())
            m, l, acc = self.update(m, l, acc, s, V, q.dtype)
        return m, l, acc

    def update(
        self, m: torch.Tensor, l: torch.Tensor, acc: torch.Tensor, s: torch.Tensor, V: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        if self.rescale_above:
            top = torch.where((top - m > self.rescale_above) | (m == NEG), top, m)
        shift = torch.where(top == NEG, 0.0, top)
        p, factor = self.exp(s - shift), self.exp(m - shift)
        rounded = self.to_p(p, dtype)
        l = self.rescale_l(l, factor) + (rounded if self.sum_rounded_p else p).sum(-1, keepdim=True)
        acc = self.accumulate(acc, self.rescale_o(factor), rounded @ V.float())
        return top, l, acc

    def rescale_l(self, l: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return l * factor

    def rescale_o(self, factor: torch.Tensor) -> torch.Tensor:
        return factor

    def exp(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp2(x * math.log2(math.e)) if self.exp2 else torch.exp(x)

    # ---- backward --------------------------------------------------------------------------------------------------

    def backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        O: torch.Tensor,
        LSE: torch.Tensor,
        dO: torch.Tensor,
        call: Call,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = self.kv_of(q.shape[1], k.shape[1])
        dO = self.read_do(dO).float()
        delta = self.delta(O, dO)
        dQ = torch.zeros(q.shape)
        dK, dV = torch.zeros(*q.shape[:2], *k.shape[2:]), torch.zeros(*q.shape[:2], *v.shape[2:])
        lse = torch.where(LSE == NEG, math.inf, LSE)[..., None]
        rows = torch.arange(q.shape[2])
        for j0 in range(0, k.shape[2], self.block_k):
            K, V = self.read_kv(k, j0, heads), self.read_kv(v, j0, heads)
            keys = torch.arange(j0, j0 + K.shape[2])
            raw = self.score(q, K, call)
            s = self.cap(raw, call)
            p = self.exp_backward(s - lse).masked_fill(self.hidden_backward(rows, keys, call), 0.0)
            ds = p * (dO @ V.float().transpose(-1, -2) - delta)
            if call.softcap:
                ds = ds * (1 - (s / call.softcap).square())
            p, ds = self.to_p(p, q.dtype), ds.to(q.dtype).float()
            dQ += self.dq_tile(ds @ K.float(), call)
            dK[:, :, keys] += self.dk_tile(self.over_rows(ds, q.float()), call)
            dV[:, :, keys] += self.over_rows(p, dO)
        return dQ.to(q.dtype), self.group(dK, k), self.group(dV, v)

    def exp_backward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)

    def over_rows(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """A sum over the query rows, in fp32."""
        return weights.transpose(-1, -2) @ x

    def hidden_backward(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return self.hidden(i, j, call)

    def read_do(self, dO: torch.Tensor) -> torch.Tensor:
        return dO

    def delta(self, O: torch.Tensor, dO: torch.Tensor) -> torch.Tensor:
        return (O.float() * dO).sum(-1, keepdim=True)

    def dq_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return x * call.scale

    def dk_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return x * call.scale

    def group(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], like.shape[1], x.shape[1] // like.shape[1], *x.shape[2:]).sum(2).to(like.dtype)

    # ---- the contract ----------------------------------------------------------------------------------------------

    def make_call(self, q: Any, k: Any, causal: bool, scale: Any, window: Any, softcap: float, alignment: str) -> Call:
        if q.shape[1] % k.shape[1]:
            raise ValueError(f"heads {q.shape[1]} is not a multiple of kv_heads {k.shape[1]}")
        offset = k.shape[2] - q.shape[2] if alignment == "bottom_right" else 0
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return Call(causal, scale, tuple(window or (-1, -1)), softcap, offset)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] | None = None,
        softcap: float = 0.0,
        alignment: str = "bottom_right",
        return_lse: bool = False,
    ) -> Any:
        call = self.make_call(q, k, causal, scale, window, softcap, alignment)
        O, LSE = Autograd.apply(q, k, v, self, call)
        return (O, self.returned_lse(LSE)) if return_lse else O

    def returned_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """LSE as the caller gets it; the backward pass keeps its own."""
        return lse


class Autograd(torch.autograd.Function):
    """Ties a kernel's forward and backward together."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: Kernel, call: Call) -> Any:
        O, LSE = kernel.forward(q, k, v, call)
        ctx.save_for_backward(q, k, v, O, LSE)
        ctx.kernel, ctx.call = kernel, call
        ctx.mark_non_differentiable(LSE)
        return O, LSE

    @staticmethod
    def backward(ctx: Any, dO: torch.Tensor, _: Any) -> Any:
        q, k, v, O, LSE = ctx.saved_tensors
        return (*ctx.kernel.backward(q, k, v, O, LSE, dO, ctx.call), None, None)
