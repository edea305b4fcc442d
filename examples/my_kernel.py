"""Two kernels of one's own: a bare function, whose keywords say what it supports, and one that declares more."""

import torch

import fabench


def attention(q, k, v, causal=False, scale=None):
    """Three PyTorch operators."""
    S = (q.float() @ k.float().transpose(-1, -2)) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1), -torch.inf)
    return torch.softmax(S, dim=-1).to(v.dtype) @ v


@fabench.backend(name="chunked", dtypes=("bf16", "fp32"), deterministic=("O", "LSE"), empty=False)
def chunked_attention(q, k, v, causal=False, scale=None, alignment="bottom_right", return_lse=False, chunk=128):
    """Whole rows of S for 128 queries at a time, in fp32."""
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"heads must be a multiple of kv_heads, got {q.shape[1]} and {k.shape[1]}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q, k and v must fit, got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (torch.bfloat16, torch.float32):
        raise TypeError(f"q, k and v must all be bfloat16 or all float32, got {q.dtype}, {k.dtype} and {v.dtype}")
    Nq, Nk = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (x.float().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    offset = Nk - Nq if alignment == "bottom_right" else 0
    parts, lses = [], []
    for i in range(0, Nq, chunk):
        S = (q[:, :, i : i + chunk].float() @ k.transpose(-1, -2)) * scale
        if causal:
            row = torch.arange(i, i + S.shape[-2], device=S.device)[:, None]
            S = S.masked_fill(torch.arange(Nk, device=S.device) > row + offset, -torch.inf)
        m = S.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
        P = torch.exp(S - m)
        total = P.sum(-1, keepdim=True)
        parts.append((P @ v / total.masked_fill(total == 0, 1)).to(q.dtype))  # a row that sees no key: 0 / 1
        lses.append((m + total.log()).squeeze(-1))
    O = torch.cat(parts, dim=2)
    return (O, torch.cat(lses, dim=2)) if return_lse else O
