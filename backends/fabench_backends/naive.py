"""Attention as PyTorch operators, written from its definition: S = scale·QKᵀ and P = softmax(S) exist in memory.

The baseline of every paper. It moves and keeps batch·heads·Nq·Nk elements twice; the scale is folded into the GEMM, so
that no pass over S is spent on it. In fp16 and bf16 S is rounded before the softmax: accuracy class B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabench.backend import Backend, Facts, Prepared, has_empty_rows
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch


class Naive(Backend):
    """Every mask, GQA, softcap and scale that a case can ask for."""

    facts = Facts(
        name="naive",
        summary="PyTorch operators; S and P in memory",
        window=True,
        softcap=True,
        accuracy="B",
        deterministic=("O", "dQ", "dK", "dV"),
        kernels=("(?i)gemm", "gemv", "nvjet", "cutlass", "(?i)softmax"),
        memory="standard",
        matrices=(2, 3, 1),  # autograd multiplies dS by the scale; under a mask it masks dS
    )

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Build the mask [Nq, Nk], once for all heads."""
        import torch

        hidden, empty = masks(case, device)
        groups = case.heads // case.kv_heads
        kv_rows = case.batch * case.kv_heads
        # Folded into the GEMM; with a softcap the GEMM gives S / softcap, which is what tanh wants.
        alpha = case.softmax_scale / case.softcap if case.softcap else case.softmax_scale

        def flat(x: torch.Tensor, rows: int) -> torch.Tensor:
            """[batch·kv_heads, rows, d]: a view if the memory order allows, else a copy, which the row then shows."""
            y = x.reshape(kv_rows, rows, x.shape[-1])
            prepared.copied |= y.data_ptr() != x.data_ptr()
            return y

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            Q, K, V = flat(q, groups * case.Nq), flat(k, case.Nk), flat(v, case.Nk)
            if alpha == 0:  # on a CPU, torch leaves the result unwritten if alpha and beta are both 0
                Q = Q * 0
            # beta = 0: the first argument is never read.
            S = torch.baddbmm(Q.new_empty(1, 1, 1), Q, K.transpose(1, 2), beta=0, alpha=alpha or 1)
            if case.softcap:
                S = S.tanh_().mul(case.softcap)
            S = S.view(kv_rows, groups, case.Nq, case.Nk)
            if hidden is not None:
                S = S.masked_fill_(hidden, -torch.inf)
            P = torch.softmax(S, dim=-1)
            if empty is not None:
                P = P.masked_fill(empty, 0)
            return torch.bmm(P.view(kv_rows, groups * case.Nq, case.Nk), V).view(*q.shape[:-1], case.dv)

        prepared = Prepared(call)
        return prepared


def masks(case: Case, device: Device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(hidden [Nq, Nk], empty [Nq, 1]) as booleans, None where nothing is.

    Rows that attend to no key are left unmasked in `hidden` and named in `empty`: their P is zeroed after the softmax,
    for a row of -inf would make NaN there and in the gradients.
    """
    import torch

    mask = case.mask
    if mask.is_full:
        return None, None
    diagonal = torch.arange(case.Nq, device=device.torch_name)[:, None] + mask.offset
    key = torch.arange(case.Nk, device=device.torch_name)
    hidden = torch.zeros(case.Nq, case.Nk, dtype=torch.bool, device=device.torch_name)
    if mask.right is not None:
        hidden |= key > diagonal + mask.right
    if mask.left is not None:
        hidden |= key < diagonal - mask.left
    if not has_empty_rows(case):
        return hidden, None
    empty = hidden.all(dim=1, keepdim=True)
    return hidden & ~empty, empty


NAIVE = Naive()
