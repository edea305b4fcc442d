"""cuda-v1 and cuda-v2 against fp64 on a GPU: head dims, masks, strides, repeatability, a replayed graph."""

from __future__ import annotations

import math

import torch

from fabench_backends.cuda_flash import api, v1_ops, v2_ops

BF16, FP16 = torch.bfloat16, torch.float16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def reference(q, k, v, causal, window, alignment, softcap, scale, dO, dLSE):
    """fp64 O, LSE, dQ, dK, dV and the mask."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    S = (q @ k.repeat_interleave(group, 1).mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        S = softcap * torch.tanh(S / softcap)
    Nq, Nk = S.shape[-2:]
    low, high = api.band(Nq, Nk, causal, window, alignment)
    i, j = torch.arange(Nq, device=DEVICE)[:, None], torch.arange(Nk, device=DEVICE)[None]
    seen = (i + low <= j) & (j <= i + high)
    S = S.masked_fill(~seen, -math.inf)
    empty = ~seen.any(1)
    LSE = torch.logsumexp(S, -1)
    P = torch.exp(S - LSE.masked_fill(-math.inf == LSE, 0)[..., None])
    O = P @ v.repeat_interleave(group, 1)
    loss = (O * dO.double()).sum()
    if dLSE is not None:
        loss = loss + (LSE * dLSE.double())[..., ~empty].sum()
    grads = torch.autograd.grad(loss, (q, k, v))
    return O.detach(), LSE.detach(), *grads


CASES = [
    # B H Hkv Nq Nk d dv causal window alignment softcap scale dtype
    (2, 3, 3, 128, 128, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (2, 3, 3, 128, 128, 128, 128, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 512, 512, 64, 64, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 512, 512, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (2, 4, 2, 257, 257, 64, 64, True, None, "bottom_right", 0, None, FP16),
    (2, 4, 1, 193, 321, 128, 128, True, None, "bottom_right", 0, None, FP16),
    (1, 2, 2, 321, 193, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 321, 193, 64, 64, True, None, "top_left", 0, None, BF16),
    (1, 2, 2, 113, 203, 64, 64, True, None, "top_left", 0, None, BF16),
    (1, 2, 2, 400, 400, 64, 64, False, (33, 17), "bottom_right", 0, None, BF16),
    (1, 2, 2, 400, 300, 128, 128, False, (64, 0), "bottom_right", 0, None, BF16),
    (1, 2, 2, 300, 400, 128, 128, True, (64, 0), "top_left", 0, None, BF16),
    (1, 2, 2, 200, 200, 64, 64, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 2, 200, 200, 128, 128, False, None, "bottom_right", 30.0, None, FP16),
    (1, 2, 2, 97, 129, 64, 64, False, None, "bottom_right", 0, -0.1, BF16),
    (1, 2, 2, 97, 97, 64, 64, True, None, "bottom_right", 0, 0.0, BF16),
    (1, 2, 2, 97, 97, 128, 128, False, None, "bottom_right", 0, 1.0, BF16),
    (1, 2, 2, 129, 1, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 1, 799, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 1, 8192, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 5, 0, 64, 64, False, None, "bottom_right", 0, None, BF16),
    *(
        (1, 4, 2, 191, 255, d, dv, c, None, "bottom_right", 0, None, t)
        for d, dv, t in [
            (8, 8, BF16), (16, 16, FP16), (32, 32, BF16), (40, 40, FP16), (72, 72, BF16), (80, 80, FP16),
            (96, 96, BF16), (104, 104, BF16), (160, 160, FP16), (192, 192, BF16), (256, 256, BF16),
            (64, 128, BF16), (128, 64, FP16), (192, 128, BF16),
        ]
        for c in (False, True)
    ),
    (1, 2, 1, 200, 200, 32, 32, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 96, 96, True, (50, 0), "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 192, 192, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 256, 256, True, None, "bottom_right", 5.0, None, BF16),
]  # fmt: skip


def takes_v1(case: tuple) -> bool:
    """No window, no softcap, head dims up to 128."""
    return case[8] is None and not case[10] and max(case[5:7]) <= 128


def error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """Worst row error over the mean row norm; inf where the NaN or inf masks differ."""
    out = out.double()
    if out.numel() == 0:
        return 0.0
    if not torch.equal(torch.isfinite(out), torch.isfinite(ref)):
        return math.inf
    finite = torch.isfinite(ref)
    out, ref = out.masked_fill(~finite, 0), ref.masked_fill(~finite, 0)
    if ref.dim() == 3:
        return (out - ref).abs().max().item()
    scale = ref.norm(dim=-1).pow(2).mean().sqrt().item()
    return ((out - ref).norm(dim=-1).max() / (scale or 1)).item()


def check(cases: list[tuple], deterministic: bool, v1: bool = False) -> list[dict]:
    """Every case against fp64, forward and backward."""
    rows = []
    for case in cases:
        batch, H, Hkv, Nq, Nk, d, dv, causal, window, alignment, softcap, scale, dtype = case
        torch.manual_seed(0)

        def make(heads, n, dim, dtype=dtype, batch=batch):
            # memory order [batch, n, heads, dim] with the rows inside a wider one
            return torch.randn(batch, n, heads, dim + 8, device=DEVICE).to(dtype)[..., :dim].transpose(1, 2)

        q, k, v = make(H, Nq, d), make(Hkv, Nk, d), make(Hkv, Nk, dv)
        dO, dLSE = make(H, Nq, dv), torch.randn(batch, H, Nq, device=DEVICE)
        ref = reference(q, k, v, causal, window, alignment, softcap, scale, dO, dLSE)
        for t in (q, k, v):
            t.requires_grad_()
        row = {"case": " ".join(map(str, case)).replace("torch.", "")}
        try:
            if v1:
                O, LSE = v1_ops.attention(q, k, v, causal, scale, alignment, True)
            else:
                O, LSE = v2_ops.attention(q, k, v, causal, scale, window, softcap, alignment, True, deterministic)
            seen = torch.isfinite(LSE)
            grads = torch.autograd.grad((O, LSE), (q, k, v), (dO, dLSE * seen))
            torch.cuda.synchronize()
            again = (
                v1_ops.attention(q, k, v, causal, scale, alignment, True)
                if v1
                else v2_ops.attention(q, k, v, causal, scale, window, softcap, alignment, True, deterministic)
            )
            repeat = [*again, *torch.autograd.grad(again, (q, k, v), (dO, dLSE * seen))]
            for name, a, b in zip(("O", "LSE", "dQ", "dK", "dV"), (O, LSE, *grads), repeat, strict=True):
                if (name != "dQ" or deterministic or v1) and not torch.equal(a, b):
                    row["problem"] = f"{name} differs from run to run"
                    print("NOT REPEATABLE", row["case"], name, flush=True)
            errors = [error(a, b) for a, b in zip((O.detach(), LSE.detach(), *grads), ref, strict=True)]
        except Exception as problem:
            if "illegal" in str(problem) or "misaligned" in str(problem):
                raise
            errors, row["problem"] = [math.inf] * 5, str(problem)[:300]
        low_precision = 2.5e-2 if dtype is BF16 else 4e-3
        limits = [low_precision, 2e-5 * (1 + (softcap or 1)), *[2 * low_precision] * 3]
        row |= {"errors": errors, "ok": all(e <= limit for e, limit in zip(errors, limits, strict=True))}
        rows.append(row)
        if not row["ok"]:
            print("WRONG", row["case"], " ".join(f"{e:.2e}" for e in errors), row.get("problem", ""), flush=True)
    worst = [max(r["errors"][i] for r in rows if r["ok"]) for i in range(5)] if any(r["ok"] for r in rows) else []
    right = sum(row["ok"] for row in rows)
    print(f"{right} of {len(rows)} right; worst O LSE dQ dK dV", " ".join(f"{w:.1e}" for w in worst))
    return rows


def graph() -> bool:
    """True if a captured graph, replayed with new inputs, gives what a plain call gives."""
    q, k, v = (torch.randn(2, 4, 300, 64, device=DEVICE).to(BF16) for _ in range(3))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        v2_ops.attention(q, k, v, True)
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            O = v2_ops.attention(q, k, v, True)
        q.normal_()
        captured.replay()
        stream.synchronize()
    return torch.equal(O, v2_ops.attention(q, k, v, True))
