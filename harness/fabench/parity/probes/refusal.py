"""REFUSAL: malformed calls must raise; an answer to one is silent garbage, or memory read past the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch

from fabench.case import Case
from fabench.function_backend import FunctionBackend
from fabench.inputs import Tensors, make
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict

SHAPE_FAULTS = ("heads", "K ", "V with")
"""These have no right answer. An undeclared dtype or d that is answered, and rightly, is no silent garbage."""
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
Malformed = tuple[str, Callable[[], Tensors]]


def run(bench: Bench) -> Verdict:
    """Every malformed call of a decorated function; of a bare one only heads that kv_heads do not divide."""
    backend = bench.subject.backend
    if not isinstance(backend, FunctionBackend):
        return NotApplicable("an adapter refuses by its declared facts")
    tried = 0
    for what, build in _malformed(bench):
        if backend.facts.bare and not what.startswith("heads"):
            continue
        tensors = build()
        tried += 1
        try:
            with torch.no_grad():
                output = backend.function(tensors.q, tensors.k, tensors.v)
            bench.subject.synchronize()
        except Exception:
            continue
        if not what.startswith(SHAPE_FAULTS) and _right(tensors, output):
            continue
        shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise Failed(f"{what} must be refused with an exception, got an answer ({shape})")
    return Passed(numbers={"malformed calls": float(tried)})


def _malformed(bench: Bench) -> Iterator[Malformed]:
    """What is wrong, and the inputs."""
    case, facts, device = bench.case, bench.subject.facts, bench.device
    base = dataclasses.replace(case, heads=4, kv_heads=4, layout="bhsd", direction="forward")

    def change(**shapes: tuple[int, ...]) -> Callable[[], Tensors]:
        def build() -> Tensors:
            t = make(base, device)
            return dataclasses.replace(
                t, **{n: torch.ones(s, dtype=bench.dtype, device=device) for n, s in shapes.items()}
            )

        return build

    b, Nk, d, dv = base.batch, base.Nk, base.d, base.dv
    yield "heads = 4 with kv_heads = 3", change(k=(b, 3, Nk, d), v=(b, 3, Nk, dv))
    yield "heads = 4 with kv_heads = 8", change(k=(b, 8, Nk, d), v=(b, 8, Nk, dv))
    yield "K with another d than q", change(k=(b, 4, Nk, d * 2))
    yield "V with fewer rows than K", change(v=(b, 4, max(1, Nk - 1), dv))
    yield "K and V of another batch size", change(k=(b + 1, 4, Nk, d), v=(b + 1, 4, Nk, dv))
    refused_dtypes = [t for n, t in FORMATS.items() if n not in facts.dtypes]
    for dtype in refused_dtypes:
        yield f"dtype {str(dtype).removeprefix('torch.')}", partial(_cast, base, device, dtype)
    yield "V of another dtype than q", partial(_other_dtype, base, device)
    if (d_bad := _refused_d(facts.head_dims, facts.max_head_dim, facts.head_dim_multiple)) is not None:
        refused = dataclasses.replace(base, d=d_bad, dv=d_bad)
        yield f"d = {d_bad}, which the facts exclude", partial(make, refused, device)


def _right(t: Tensors, output: object) -> bool:
    """True if `output` is the unmasked attention of `t`, to a few percent."""
    q, k, v = (x.double() for x in (t.q, t.k, t.v))
    O = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
    if not isinstance(output, torch.Tensor) or output.shape != O.shape:
        return False
    return float((output.double() - O).norm()) <= 0.05 * float(O.norm())


def _cast(case: Case, device: torch.device, dtype: torch.dtype) -> Tensors:
    t = make(case, device)
    return Tensors(t.q.to(dtype), t.k.to(dtype), t.v.to(dtype))


def _other_dtype(case: Case, device: torch.device) -> Tensors:
    t = make(case, device)
    other = torch.float16 if t.v.dtype != torch.float16 else torch.bfloat16
    return Tensors(t.q, t.k, t.v.to(other))


def _refused_d(head_dims: tuple[int, ...] | None, largest: int | None, multiple: int) -> int | None:
    """A head dim the facts exclude, or None if they exclude none."""
    if head_dims is not None:
        return max(head_dims) + 8
    if largest is not None:
        return largest + max(8, multiple)
    return multiple + 1 if multiple > 1 else None
