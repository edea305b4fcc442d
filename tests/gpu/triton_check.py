"""The Triton kernels against fp64 on a GPU: every declared configuration, and odd shapes, masks, strides and dtypes.

`check(case)` runs in a worker process (see kernel_bars.py), so that a few dozen compilations go on at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends"), str(ROOT / "tests")]

Case = dict[str, Any]
BOUND = {"bfloat16": 1.2e-2, "float16": 1.5e-3, "float32": 5e-6}
"""Frobenius errors of kernels that round P and dS once to the dtype."""
WIDE: Case = {"Nq": 300, "Nk": 413, "heads": 4, "kv_heads": 2, "batch": 2, "causal": True}
LAYOUTS = ("bshd", "packed", "expanded", "offset1", "offset8", "sliced", "wide_rows", "odd_size_1")


def configuration_cases() -> list[Case]:
    """Each Hopper configuration once, TMA and pointers, on a causal GQA case with tails."""
    from fabench_backends.triton_flash.configs import KERNELS, WIDTHS, declared

    cases: list[Case] = []
    for kernel in KERNELS:
        for width in WIDTHS:
            for config in declared(kernel, "hopper", width, 2):
                fields = [config.BLOCK_M, config.BLOCK_N, config.num_warps, config.num_stages]
                for tma in (True, False):
                    cases.append(
                        {**WIDE, "d": width, "dtype": "bfloat16", "configs": {kernel: [*fields, tma, config.maxnreg]}}
                    )
    return cases


def shape_cases() -> list[Case]:
    """What the kernels take beyond the plain case."""
    cases: list[Case] = [{**WIDE, "d": d, "dtype": "bfloat16"} for d in (8, 40, 72, 80, 96, 160, 192)]
    cases += [{**WIDE, "d": d, "dtype": "float16"} for d in (64, 128)]
    cases += [{**WIDE, "d": d, "dtype": "float32"} for d in (16, 64, 128, 256)]
    cases += [{**WIDE, "d": 64, "dtype": "bfloat16", "layout": layout} for layout in LAYOUTS]
    half: Case = {"d": 64, "dtype": "bfloat16", "heads": 2}
    cases += [
        {**half, "Nq": 1},
        {**half, "Nq": 1, "Nk": 1000, "causal": True},
        {**half, "Nq": 1000, "Nk": 1, "causal": True},
        {**half, "Nq": 1025, "causal": True},
        {**half, "Nq": 640, "Nk": 128, "causal": True},
        {**half, "Nq": 128, "Nk": 640, "causal": True, "alignment": "top_left"},
        {**half, "Nq": 1024, "window": [100, 30]},
        {**half, "Nq": 1000, "window": [256, 0], "causal": True, "d": 128},
        {**half, "Nq": 700, "Nk": 300, "window": [5, 5]},
        {**half, "Nq": 500, "softcap": 15.0, "causal": True},
        {**half, "Nq": 500, "scale": -0.1},
        {**half, "Nq": 500, "scale": 0.0},
        {**half, "Nq": 500, "d": 64, "dv": 128},
        {**half, "Nq": 500, "d": 192, "dv": 128, "causal": True},
        {**half, "Nq": 500, "std": 6.0, "dtype": "float16"},
        {**half, "Nq": 2, "batch": 256, "heads": 256, "d": 16},
        {**half, "Nq": 4097, "causal": True, "d": 128, "heads": 4, "kv_heads": 1},
    ]
    return cases


def laid_out(tensor: Any, layout: str | None) -> Any:
    """The same values under another memory order."""
    import torch

    batch, heads, N, d = tensor.shape
    if layout == "bshd":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "packed":
        storage = tensor.new_zeros(batch, N, 3, heads, d)
        storage[:, :, 1] = tensor.transpose(1, 2)
        return storage[:, :, 1].transpose(1, 2)
    if layout == "expanded":  # batch 0 everywhere, at stride 0
        return tensor[:1].expand(batch, heads, N, d)
    if layout in ("offset1", "offset8"):
        offset = int(layout[-1])
        storage = tensor.new_zeros(tensor.numel() + offset)
        storage[offset:] = tensor.reshape(-1)
        return storage[offset:].view(tensor.shape)
    if layout == "sliced":
        storage = torch.full((batch, heads, N + 77, d), float("nan"), dtype=tensor.dtype, device=tensor.device)
        storage[:, :, :N] = tensor
        return storage[:, :, :N]
    if layout == "wide_rows":  # offsets beyond 2**31 within one head
        storage = torch.empty((N - 1) * 2**23 + batch * heads * d, dtype=tensor.dtype, device=tensor.device)
        wide = storage.as_strided((batch, heads, N, d), (heads * d, d, 2**23, 1))
        return wide.copy_(tensor)
    if layout == "odd_size_1":
        return tensor[:1].as_strided((1, heads, N, d), (3, N * d, d, 1))
    return tensor


def check(case: Case) -> tuple[Case, dict[str, float], float]:
    """(case, error by output, seconds); NaN counts as infinitely wrong. Poisoned memory must not reach an output."""
    import time

    import torch

    import triton_oracle
    from fabench.attention_op import layout
    from fabench_backends.triton_flash.checks import band
    from fabench_backends.triton_flash.configs import Config
    from fabench_backends.triton_flash.launch import Plan

    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.perf_counter()
    q, k, v, do = (t.cuda() for t in triton_oracle.tensors({**case, "layout": None}, getattr(torch, case["dtype"])))
    q, k, v = (laid_out(t, case.get("layout")) for t in (q, k, v))
    do = do[: q.shape[0]]
    mask = band(
        q.shape[2], k.shape[2], case.get("causal", False), case.get("window"), case.get("alignment", "bottom_right")
    )
    plan = Plan(layout(q), layout(k), layout(v), mask, case.get("scale", q.shape[3] ** -0.5), case.get("softcap", 0.0))
    choices: Any = {kernel: Config(*config) for kernel, config in case.get("configs", {}).items()} or None
    torch.full((q.numel() * 4,), float("nan"), device="cuda", dtype=q.dtype)  # freed at once: what empty() will get
    o, lse = plan.forward(q, k, v, choices)
    gradients = plan.backward(q, k, v, o, lse, do, None, choices)
    wanted = triton_oracle.reference(q, k, v, do, case)
    errors = {}
    for name, got in zip(("O", "LSE", "dQ", "dK", "dV"), (o, lse, *gradients), strict=True):
        want = wanted[name]
        if name == "LSE":
            same = bool((got.isneginf() == want.isneginf()).all())
            seen = ~want.isneginf()
            worst = float((got[seen].double() - want[seen]).abs().max()) if bool(seen.any()) else 0.0
            error = worst / case.get("std", 1.0) ** 2 / 2e-5 if same else float("inf")
        else:
            error = float((got.double() - want).norm() / want.norm().clamp_min(1.0)) / BOUND[case["dtype"]]
        errors[name] = error if error == error else float("inf")
    return case, errors, time.perf_counter() - started
