"""What the backends are compared with: attention by its definition in fp64, and the cases to compare on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench.dtypes import DTYPES

CPU = Device("cpu", "test")
H100 = Device("cuda", "NVIDIA H100", capability=(9, 0), sms=132)

SHAPE = Case(batch=2, heads=4, kv_heads=4, Nq=33, Nk=33, d=16, dtype="fp32")
WIDE = replace(SHAPE, Nq=9, Nk=40)
TALL = replace(SHAPE, Nq=40, Nk=9)

CASES: dict[str, Case] = {
    "full": SHAPE,
    "causal": replace(SHAPE, causal=True),
    "wide full": WIDE,
    "wide causal bottom-right": replace(WIDE, causal=True),
    "wide causal top-left": replace(WIDE, causal=True, alignment="top_left"),
    "tall causal bottom-right, empty rows": replace(TALL, causal=True),
    "tall causal top-left": replace(TALL, causal=True, alignment="top_left"),
    "window": replace(SHAPE, window=(5, 3)),
    "causal window": replace(SHAPE, window=(5, 0), causal=True),
    "left window only": replace(SHAPE, window=(4, -1)),
    "tall window, empty rows": replace(TALL, window=(2, 1)),
    "wide window top-left": replace(WIDE, window=(2, 1), alignment="top_left"),
    "one query": replace(SHAPE, Nq=1, causal=True),
    "one query top-left": replace(SHAPE, Nq=1, causal=True, alignment="top_left"),
    "gqa": replace(SHAPE, kv_heads=2),
    "mqa causal": replace(SHAPE, kv_heads=1, causal=True),
    "gqa window": replace(WIDE, kv_heads=2, window=(7, 2)),
    "dv differs": replace(SHAPE, dv=24),
    "odd d": replace(SHAPE, d=7, dv=7),
    "softcap": replace(SHAPE, softcap=2.0),
    "softcap causal gqa": replace(SHAPE, softcap=1.5, causal=True, kv_heads=2),
    "scale 1": replace(SHAPE, scale=1.0),
    "scale 0": replace(SHAPE, scale=0.0, causal=True),
    "negative scale": replace(SHAPE, scale=-0.1, causal=True),
    "no queries": replace(SHAPE, Nq=0),
    "no keys": replace(SHAPE, Nk=0),
    "bshd": replace(SHAPE, layout="bshd", causal=True),
    "packed": replace(SHAPE, layout="packed"),
    "bf16": replace(SHAPE, dtype="bf16", causal=True),
    "fp16": replace(SHAPE, dtype="fp16"),
    "fp16 gqa window": replace(SHAPE, dtype="fp16", kv_heads=2, window=(9, 9)),
    "longer than a tile": replace(SHAPE, batch=1, heads=2, kv_heads=2, Nq=200, Nk=313, causal=True),
}


@dataclass
class Result:
    """Outputs by name; LSE only where the backend returned it."""

    O: torch.Tensor
    LSE: torch.Tensor | None
    dQ: torch.Tensor | None = None
    dK: torch.Tensor | None = None
    dV: torch.Tensor | None = None


def tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v and dO of a case, normal, seeded, in its memory order."""
    generator = torch.Generator().manual_seed(case.seed + 7)
    dtype = getattr(torch, DTYPES[case.dtype].torch_name)
    shapes = (
        (case.batch, case.heads, case.Nq, case.d),
        (case.batch, case.kv_heads, case.Nk, case.d),
        (case.batch, case.kv_heads, case.Nk, case.dv),
        (case.batch, case.heads, case.Nq, case.dv),
    )
    q, k, v, dO = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    if case.layout == "bshd":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    elif case.layout == "packed":
        q, k, v = torch.stack((q, k, v), dim=0).permute(1, 3, 0, 2, 4).contiguous().permute(2, 0, 3, 1, 4)
    return q, k, v, dO


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) of a case by brute force: the mask is asked key by key of `Mask.keys`."""
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    S = q @ k.transpose(-1, -2) * case.softmax_scale
    if case.softcap:
        S = case.softcap * torch.tanh(S / case.softcap)
    seen = torch.zeros(case.Nq, case.Nk, dtype=torch.bool)
    for i in range(case.Nq):
        keys = case.mask.keys(i)
        seen[i, keys.start : keys.stop] = True
    S = S.masked_fill(~seen, -math.inf)
    empty = ~seen.any(1)[:, None]
    P = torch.softmax(S.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return P @ v, torch.logsumexp(S, -1)


def run(call: Callable[..., object], case: Case) -> Result:
    """Launch forward, and backward if the case has it, through autograd as the harness does."""
    q, k, v, dO = tensors(case)
    leaves = [x.detach().requires_grad_(case.has_backward) for x in (q, k, v)]
    output = call(*leaves)
    O, LSE = output if isinstance(output, tuple) else (output, None)  # type: ignore[misc]
    gradients = torch.autograd.grad(O, leaves, dO) if case.has_backward else (None, None, None)
    return Result(O.detach(), None if LSE is None else LSE.detach(), *gradients)


def expected(case: Case) -> Result:
    """The same in fp64, from the same rounded inputs."""
    q, k, v, dO = (x.double() for x in tensors(case))
    leaves = [x.requires_grad_(case.has_backward) for x in (q, k, v)]
    O, LSE = attention(*leaves, case)
    gradients = torch.autograd.grad(O, leaves, dO) if case.has_backward else (None, None, None)
    return Result(O.detach(), LSE.detach(), *gradients)


TOLERANCE = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 3e-2}


def check(backend: Backend, case: Case, *, lse: bool = False, device: Device = CPU) -> None:
    """Fail unless the backend's outputs are those of the definition: shapes, dtypes, zeros, values."""
    result, right = run(backend.prepare(case, device, lse=lse).call, case), expected(case)
    dtype = getattr(torch, DTYPES[case.dtype].torch_name)
    for name in ("O", "dQ", "dK", "dV"):
        got, want = getattr(result, name), getattr(right, name)
        if want is None:
            continue
        assert got.shape == want.shape, name
        assert got.dtype == dtype, name
        torch.testing.assert_close(
            got.double(),
            want,
            rtol=TOLERANCE[case.dtype],
            atol=TOLERANCE[case.dtype],
            msg=lambda m, n=name: f"{n}: {m}",
        )
        if name in ("O", "dQ"):
            for i in range(case.Nq):
                if not case.mask.keys(i):
                    assert not got[:, :, i].any(), f"{name} of the empty row {i}"
    if lse:
        assert result.LSE is not None
        assert right.LSE is not None
        assert result.LSE.dtype == torch.float32
        torch.testing.assert_close(result.LSE.double(), right.LSE, rtol=1e-5, atol=TOLERANCE[case.dtype])
