"""fp64 attention with gradients, written out: what the Triton kernels are compared with, and the child they run in.

The interpreter must be asked for before triton is imported, so the kernels run in a process of their own: this file
is that process's program. It reads one JSON list of cases on stdin and prints one JSON list of results.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

Case = dict[str, Any]


def reference(q: Any, k: Any, v: Any, do: Any, case: Case) -> dict[str, Any]:
    """O, LSE, dQ, dK, dV in fp64 from the exact inputs, by the definition."""
    import torch

    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    Nq, Nk = q.shape[2], k.shape[2]
    s = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * case.get("scale", q.shape[3] ** -0.5)
    if cap := case.get("softcap", 0.0):
        s = cap * torch.tanh(s / cap)
    left, right = case.get("window") or (-1, -1)
    right = 0 if case.get("causal") else right
    diagonal = torch.arange(Nq, device=q.device)[:, None] + (
        Nk - Nq if case.get("alignment", "bottom_right") == "bottom_right" else 0
    )
    keys = torch.arange(Nk, device=q.device)[None, :]
    seen = torch.ones(Nq, Nk, dtype=torch.bool, device=q.device)
    if left >= 0:
        seen &= keys >= diagonal - left
    if right >= 0:
        seen &= keys <= diagonal + right
    s = s.masked_fill(~seen, -math.inf)
    lse = s.logsumexp(-1)
    p = torch.exp(s - torch.where(lse.isinf(), 0.0, lse)[..., None])
    o = p @ v.repeat_interleave(group, 1)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do.double())
    return {"O": o.detach(), "LSE": lse.detach(), "dQ": dq, "dK": dk, "dV": dv}


def tensors(case: Case, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Seeded q, k, v and dO of a case; `layout` bshd makes them views of [batch, N, heads, d] storage."""
    import torch

    generator = torch.Generator().manual_seed(case.get("seed", 0))
    batch, heads, kv_heads = case.get("batch", 1), case.get("heads", 1), case.get("kv_heads", case.get("heads", 1))
    d, dv, Nq = case["d"], case.get("dv", case["d"]), case["Nq"]
    Nk = case.get("Nk", Nq)

    def make(heads: int, N: int, d: int) -> Any:
        values = torch.randn(batch, heads, N, d, generator=generator) * case.get("std", 1.0)
        if case.get("layout") == "bshd":
            return values.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
        return values.to(dtype)

    return make(heads, Nq, d), make(kv_heads, Nk, d), make(kv_heads, Nk, dv), make(heads, Nq, dv)


def run(case: Case) -> dict[str, Any]:
    """Frobenius errors of O, dQ, dK, dV relative to a norm of at least 1, the largest of LSE, and if empty rows are.

    A case with "forward_only" has no gradients.
    """
    import torch

    from fabench.attention_op import layout
    from fabench_backends.triton_flash.checks import band
    from fabench_backends.triton_flash.configs import Config
    from fabench_backends.triton_flash.launch import Plan

    q, k, v, do = tensors(case, getattr(torch, case["dtype"]))
    mask = band(
        q.shape[2], k.shape[2], case.get("causal", False), case.get("window"), case.get("alignment", "bottom_right")
    )
    plan = Plan(layout(q), layout(k), layout(v), mask, case.get("scale", q.shape[3] ** -0.5), case.get("softcap", 0.0))
    choices = {kernel: Config(*config) for kernel, config in case.get("configs", {}).items()} or None
    o, lse = plan.forward(q, k, v, choices)
    wanted = reference(q, k, v, do, case)
    got = {"O": o}
    if not case.get("forward_only"):
        got["dQ"], got["dK"], got["dV"] = plan.backward(q, k, v, o, lse, do, None, choices)
    result: dict[str, Any] = {
        name: float((tensor.double() - wanted[name]).norm() / wanted[name].norm().clamp_min(1.0))
        for name, tensor in got.items()
    }
    empty = wanted["LSE"].isinf()
    result["LSE"] = float((lse.double() - wanted["LSE"])[~empty].abs().amax()) if bool((~empty).any()) else 0.0
    zeros = [got[name][empty] for name in ("O", "dQ") if name in got]
    result["empty"] = bool((lse.isneginf() == empty).all()) and not any(bool(rows.any()) for rows in zeros)
    return result


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
