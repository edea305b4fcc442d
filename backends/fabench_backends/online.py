"""FlashAttention in PyTorch operators: tiles of Q against tiles of K and V, with the softmax kept online.

The algorithm of FlashAttention-2 (Dao 2023, algorithms 1 and 2), written to be read: S, the running maximum m, the
running sum l and the accumulator are fp32, P and dS are rounded to the inputs' dtype, and the backward pass recomputes
P from the stored LSE. Every tile is computed for all batches and heads at once, and no tensor of size Nq·Nk exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output

BLOCK_Q, BLOCK_K = 256, 256
"""Rows of Q and of K in a tile: large, since every tile costs a dozen kernel launches."""


class Online(Backend):
    """Every mask, GQA, softcap and scale that a case can ask for, in O(N) memory, with its LSE."""

    def __init__(self, name: str = "online", block_q: int = BLOCK_Q, block_k: int = BLOCK_K) -> None:
        self.block_q, self.block_k = block_q, block_k
        self.facts = Facts(
            name=name,
            summary="FlashAttention-2's algorithm in PyTorch operators",
            window=True,
            softcap=True,
            returns_lse=True,
            deterministic=("O", "LSE", "dQ", "dK", "dV"),
            kernels=("(?i)gemm", "gemv", "nvjet", "cutlass"),
        )

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the problem; there is nothing to build."""
        attention = function()
        problem = Problem(case, self.block_q, self.block_k)

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            O, LSE = attention.apply(q, k, v, problem)
            return (O, LSE) if lse else O

        return Prepared(call, tuned=lambda: {"block_q": self.block_q, "block_k": self.block_k})


@dataclass(frozen=True)
class Problem:
    """A case and its tiles. Shapes inside: rows = batch·kv_heads, G = heads per kv head."""

    case: Case
    block_q: int
    block_k: int

    @property
    def groups(self) -> int:
        """Query heads that share one kv head."""
        return self.case.heads // self.case.kv_heads

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, N, c] -> [batch, kv_heads, G, N, c], a view."""
        return x.view(x.shape[0], self.case.kv_heads, self.groups, *x.shape[2:])

    def q_tile(self, x: torch.Tensor, i: int) -> torch.Tensor:
        """Rows i.. of a folded tensor as [rows, G·block, c]: the heads of a group are stacked as more queries."""
        return x[:, :, :, i : i + self.block_q].flatten(2, 3).flatten(0, 1)

    def k_tile(self, x: torch.Tensor, j: int) -> torch.Tensor:
        """Rows j.. of k or v as [rows, block, c]."""
        return x[:, :, j : j + self.block_k].flatten(0, 1)

    def q_blocks(self) -> range:
        """First rows of the tiles of Q."""
        return range(0, self.case.Nq, self.block_q)

    def k_blocks(self, i: int) -> range:
        """First rows of the tiles of K that any query of tile i attends to."""
        mask, last = self.case.mask, min(i + self.block_q, self.case.Nq) - 1
        low = 0 if mask.left is None else max(0, i + mask.offset - mask.left)
        high = self.case.Nk if mask.right is None else min(self.case.Nk, last + mask.offset + mask.right + 1)
        return range(low // self.block_k * self.block_k, max(high, 0), self.block_k) if low < high else range(0)

    def hidden(self, i: int, j: int, device: torch.device) -> torch.Tensor | None:
        """[rows of tile i, keys of tile j], True where the mask hides the key; None if it hides none of the tile."""
        import torch

        mask, rows, keys = self.case.mask, min(self.block_q, self.case.Nq - i), min(self.block_k, self.case.Nk - j)
        first, last = i + mask.offset, i + rows - 1 + mask.offset
        cut_right = mask.right is not None and j + keys - 1 > first + mask.right
        cut_left = mask.left is not None and j < last - mask.left
        if not (cut_right or cut_left):
            return None
        distance = torch.arange(j, j + keys, device=device) - torch.arange(first, last + 1, device=device)[:, None]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if mask.right is not None:
            hidden |= distance > mask.right
        if mask.left is not None:
            hidden |= distance < -mask.left
        return hidden

    def scores(self, Q: torch.Tensor, K: torch.Tensor) -> torch.Tensor:
        """scale·QKᵀ of one tile in fp32 [rows, G·block_q, block_k], over the softcap if there is one."""
        return product(Q, K.mT).mul_(self.case.softmax_scale / (self.case.softcap or 1.0))

    def capped(self, S: torch.Tensor) -> torch.Tensor:
        """softcap·tanh of such scores, in place; the scores themselves if there is no softcap."""
        return S.tanh_().mul_(self.case.softcap) if self.case.softcap else S

    def hide(self, S: torch.Tensor, i: int, j: int) -> torch.Tensor:
        """-inf in place where the mask hides a key of tile (i, j)."""
        hidden = self.hidden(i, j, S.device)
        if hidden is not None:
            S.view(S.shape[0], self.groups, *hidden.shape).masked_fill_(hidden, -float("inf"))
        return S


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b with an fp32 result: on CUDA the tensor cores keep their fp32 sums, elsewhere the inputs are widened."""
    import torch

    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def outputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) by the online softmax; empty rows give O = 0 and LSE = -inf."""
    import torch

    case, Q_all = problem.case, problem.fold(q)
    O = q.new_empty(case.batch, case.heads, case.Nq, case.dv)
    LSE = q.new_empty(case.batch, case.heads, case.Nq, dtype=torch.float32)
    rows, infinity = case.batch * case.kv_heads, float("inf")
    for i in problem.q_blocks():
        Q = problem.q_tile(Q_all, i)
        m = Q.new_full((rows, Q.shape[1], 1), -infinity, dtype=torch.float32)
        l = torch.zeros_like(m)
        acc = Q.new_zeros(rows, Q.shape[1], case.dv, dtype=torch.float32)
        for j in problem.k_blocks(i):
            S = problem.hide(problem.capped(problem.scores(Q, problem.k_tile(k, j))), i, j)
            m_new = torch.maximum(m, S.amax(-1, keepdim=True))
            # A row that has seen no key yet keeps m = -inf; only the exponent sees a finite number in its place.
            shift = m_new.masked_fill(torch.isneginf(m_new), 0.0)
            P = S.sub_(shift).exp_()
            correction = (m - shift).exp_()
            l = l.mul_(correction).add_(P.sum(-1, keepdim=True))
            acc = acc.mul_(correction).add_(product(P.to(q.dtype), problem.k_tile(v, j)))
            m = m_new
        seen = l != 0
        shape = (case.batch, case.kv_heads, problem.groups, -1)
        tile = slice(i, i + problem.block_q)
        problem.fold(O)[:, :, :, tile] = (acc / l.where(seen, torch.ones_like(l))).view(*shape, case.dv)
        problem.fold(LSE)[:, :, :, tile] = (m + l.log()).view(shape)
    return O, LSE


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    O: torch.Tensor,
    LSE: torch.Tensor,
    dO: torch.Tensor,
    problem: Problem,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dQ, dK, dV), with P recomputed tile by tile from LSE; sums over tiles and over a group's heads are fp32."""
    import torch

    case, dtype = problem.case, q.dtype
    Q_all, dO_all = problem.fold(q), problem.fold(dO)
    delta_all = problem.fold((dO.float() * O.float()).sum(-1, keepdim=True))
    # exp(S - LSE) of an empty row is exp(-inf - inf) = 0, not NaN.
    LSE_all = problem.fold(LSE.masked_fill(torch.isneginf(LSE), float("inf"))[..., None])
    dQ = torch.empty_like(q)
    dK = torch.zeros(k.shape, dtype=torch.float32, device=k.device)
    dV = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    for i in problem.q_blocks():
        Q, dO_i = problem.q_tile(Q_all, i), problem.q_tile(dO_all, i)
        lse, delta = problem.q_tile(LSE_all, i), problem.q_tile(delta_all, i)
        dQ_i = torch.zeros(Q.shape, dtype=torch.float32, device=q.device)
        for j in problem.k_blocks(i):
            K, V = problem.k_tile(k, j), problem.k_tile(v, j)
            S = problem.scores(Q, K)
            # d tanh x = 1 / cosh² x, which keeps its digits where 1 - tanh² x has lost them.
            slope = S.cosh().square_().reciprocal_() if case.softcap else None
            P = problem.hide(problem.capped(S), i, j).sub_(lse).exp_()
            dS = product(dO_i, V.mT).sub_(delta).mul_(P)
            if slope is not None:
                dS.mul_(slope)
            P, dS = P.to(dtype), dS.to(dtype)
            tile, shape = slice(j, j + problem.block_k), (case.batch, case.kv_heads, K.shape[1], -1)
            dQ_i += product(dS, K)
            dK[:, :, tile] += product(dS.mT, Q).view(shape)
            dV[:, :, tile] += product(P.mT, dO_i).view(shape)
        rows = slice(i, i + problem.block_q)
        folded = (case.batch, case.kv_heads, problem.groups, -1, case.d)
        problem.fold(dQ)[:, :, :, rows] = dQ_i.mul_(case.softmax_scale).view(folded)
    return dQ, dK.mul_(case.softmax_scale).to(dtype), dV.to(dtype)


def function() -> Any:
    """The autograd.Function, made on first use: a class of torch cannot be written before torch is imported."""
    global _function
    if _function is None:
        import torch

        class OnlineAttention(torch.autograd.Function):
            @staticmethod
            def forward(
                ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem
            ) -> tuple[torch.Tensor, torch.Tensor]:
                O, LSE = outputs(q, k, v, problem)
                ctx.save_for_backward(q, k, v, O, LSE)
                ctx.problem = problem
                ctx.mark_non_differentiable(LSE)
                return O, LSE

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, dO: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
                q, k, v, O, LSE = ctx.saved_tensors
                return (*gradients(q, k, v, O, LSE, dO, ctx.problem), None)

        _function = OnlineAttention
    return _function


_function: Any = None
ONLINE = Online()
