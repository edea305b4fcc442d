"""An attention kernel of one's own: FlashAttention's forward in PyTorch, with a backward that recomputes P."""

from __future__ import annotations

import torch

import fabench

TILE = 64


class Flash(torch.autograd.Function):
    """O and LSE tile by tile; saves only q, k, v, O and LSE."""

    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        m = torch.full(q.shape[:3], -torch.inf, device=q.device)
        l = torch.zeros_like(m)
        acc = torch.zeros(*q.shape[:3], v.shape[-1], device=q.device)
        for j in range(0, k.shape[2], TILE):
            S = scores(q, k[:, :, j : j + TILE], j, k.shape[2], causal, scale)
            m_new = torch.maximum(m, S.amax(-1))
            shift = torch.where(m_new == -torch.inf, 0.0, m_new)
            P, alpha = torch.exp(S - shift[..., None]), torch.exp(m - shift)
            l = l * alpha + P.sum(-1)
            acc = acc * alpha[..., None] + P.to(v.dtype).float() @ v[:, :, j : j + TILE].float()
            m = m_new
        O = torch.where((l == 0)[..., None], 0.0, acc / l[..., None]).to(q.dtype)
        LSE = m + torch.log(l)
        ctx.save_for_backward(q, k, v, O, LSE)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(LSE)
        return O, LSE

    @staticmethod
    def backward(ctx, dO, _):
        q, k, v, O, LSE = ctx.saved_tensors
        dQ, dK, dV = (torch.zeros(x.shape, device=x.device) for x in (q, k, v))
        delta = (dO.float() * O.float()).sum(-1, keepdim=True)
        LSE = torch.where(-torch.inf == LSE, torch.inf, LSE)[..., None]  # an empty row has P = 0
        for j in range(0, k.shape[2], TILE):
            tile = slice(j, j + TILE)
            P = torch.exp(scores(q, k[:, :, tile], j, k.shape[2], ctx.causal, ctx.scale) - LSE)
            dS = P * (dO.float() @ v[:, :, tile].float().mT - delta)
            P, dS = P.to(q.dtype).float(), dS.to(q.dtype).float()
            dV[:, :, tile] = P.mT @ dO.float()
            dK[:, :, tile] = dS.mT @ q.float() * ctx.scale
            dQ += dS @ k[:, :, tile].float() * ctx.scale
        return dQ.to(q.dtype), dK.to(k.dtype), dV.to(v.dtype), None, None


def scores(q, k, start, Nk, causal, scale):
    """S of all queries against the keys from `start` on, -inf where causal hides them (aligned bottom-right)."""
    S = q.float() @ k.float().mT * scale
    if causal:
        rows = torch.arange(q.shape[2], device=q.device)[:, None] + Nk - q.shape[2]
        S = S.masked_fill(torch.arange(start, start + k.shape[2], device=q.device) > rows, -torch.inf)
    return S


@fabench.backend(gqa=False, empty=False, alignments=("bottom_right",), deterministic=("O", "LSE", "dQ", "dK", "dV"))
def attention(q, k, v, causal=False, scale=None, alignment="bottom_right", return_lse=False):
    """The contract's function: its keywords say what it supports, the decorator what they cannot say."""
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3] or q.dtype != v.dtype:
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not go together")
    O, LSE = Flash.apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale)
    return (O, LSE) if return_lse else O
