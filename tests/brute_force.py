"""Attention from its definition, with autograd: one loop over queries for the mask, nothing tiled."""

from __future__ import annotations

import torch

from fabench.case import Case
from fabench.inputs import Tensors


def brute_force(case: Case, tensors: Tensors) -> dict[str, torch.Tensor]:
    q, k, v = (x.double().clone().requires_grad_() for x in (tensors.q, tensors.k, tensors.v))
    group = case.heads // case.kv_heads
    K, V = (x.repeat_interleave(group, 1) for x in (k, v))
    S = q @ K.transpose(-1, -2) * case.softmax_scale
    if case.softcap:
        S = case.softcap * torch.tanh(S / case.softcap)
    shown = torch.zeros(case.Nq, case.Nk, dtype=torch.bool)
    for i in range(case.Nq):
        shown[i, list(case.mask.keys(i))] = True
    S = S.masked_fill(~shown, -torch.inf)
    lse = torch.logsumexp(S, -1)
    O = torch.exp(S - torch.where(lse == -torch.inf, 0.0, lse)[..., None]) @ V
    outputs = {"O": O.detach(), "LSE": lse.detach()}
    if tensors.dO is not None:
        gradients = torch.autograd.grad(O, (q, k, v), tensors.dO.double(), allow_unused=True)
        zeros = (torch.zeros_like(x) for x in (q, k, v))
        outputs |= {
            name: z if g is None else g for name, g, z in zip(("dQ", "dK", "dV"), gradients, zeros, strict=True)
        }
    return outputs
