"""Stand-ins for GPU libraries: each computes in fp64 by its own library's convention, and checks what it was given.

They are put into sys.modules, so that an adapter is tested on a CPU as it is: which function it calls, in which
layout, with which meaning of a window, and what it does with what comes back.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from fabench.case import Case
from plain_attention import attention

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def install(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> ModuleType:
    """Put a module into sys.modules, and its parents, for one test."""
    for depth in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:depth])
        if depth <= name.count(".") and part in sys.modules:
            continue
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    module = sys.modules[name]
    for key, value in attributes.items():
        setattr(module, key, value)
    if "." in name:
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
    return module


def bottom_right(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) of tensors in batch, N, heads, d, with bottom-right masks, as the flash-attn family defines them."""
    B, Nq, H, d = q.shape
    _, Nk, kv_heads, dv = v.shape
    assert k.shape == (B, Nk, kv_heads, d), "k is not [batch, Nk, kv_heads, d]"
    assert H % kv_heads == 0
    assert all(x.stride(-1) == 1 for x in (q, k, v)), "the last dimension is not contiguous"
    case = Case(
        B,
        H,
        Nq,
        Nk,
        d,
        kv_heads,
        dv,
        dtype=NAMES[q.dtype],
        causal=causal,
        window=None if window == (-1, -1) else window,
        softcap=softcap,
        scale=scale,
    )
    O, LSE = attention(*(x.transpose(1, 2).double() for x in (q, k, v)), case)
    return O.transpose(1, 2).to(q.dtype), LSE.float()
