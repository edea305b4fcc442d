"""Seeded inputs of a case: the same values on every machine, by distribution (`case.inputs`) and memory order.

q, k and v are drawn as [batch, heads, N, d]; `case.layout` only changes where they lie. V is zero-mean in all but the
distributions that say otherwise: with positive V most wrong kernels pass any tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.counter_random import Bits, fill, mix, normal, uniform
from fabench.dtypes import DTYPES

SPREAD = {"std3": 3.0, "std6": 6.0}
SMALL_V = {"fp16": 2.0**-18, "bf16": 2.0**-110, "fp32": 2.0**-90}
"""`subnormal`: V whose fp16 values are mostly subnormal; in the wide formats small, yet with room for P·V to be normal,
since units that flush subnormals are not wrong."""
LARGE_NORM_SQUARED = 4.0e4
"""`near_overflow`: |q|² and |k|², so that no raw score q·k passes fp16's 65504."""
LARGE_V, LARGE_V_LIMIT, LARGE_DO = 1.0e4, 6.0e4, 2.0**-10
FIRST_TILE, FIRST_TILE_NATS = 128, -300.0
"""`padded`: the first keys score this many nats, as an additive mask would make them."""
NEGLSE_NATS = -120.0
SINK_NATS = (7.0, 20.0)
ONE_HOT_NATS = 40.0
DISTINCT_KEYS = 4


def torch_dtype(case: Case) -> torch.dtype:
    """The torch dtype of the case's inputs and outputs."""
    dtype: torch.dtype = getattr(torch, DTYPES[case.dtype].torch_name)
    return dtype


@dataclass
class Tensors:
    """The inputs of one call: q [batch, heads, Nq, d], k, v [batch, kv_heads, Nk, d or dv], dO like O or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dO: torch.Tensor | None = None

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of those that are there."""
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                yield field.name, value

    def fingerprint(self) -> dict[str, int]:
        """A number for the bits of each: another one means that somebody has written into it."""
        return {name: _fingerprint(tensor.detach()) for name, tensor in self.items()}

    def requires_grad_(self, value: bool = True) -> Tensors:
        """Set it on q, k and v, drop old gradients, and return self."""
        for tensor in (self.q, self.k, self.v):
            tensor.requires_grad_(value)
            tensor.grad = None
        return self

    def detached(self) -> Tensors:
        """The same storage without gradients."""
        return Tensors(**{name: tensor.detach() for name, tensor in self.items()})


def _fingerprint(tensor: torch.Tensor) -> int:
    """Sums of the bits of every row, each row with a weight of its own, modulo 2^64."""
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
    rows = bits.sum(dim=-1, dtype=torch.int64).flatten()
    return int((rows * torch.arange(1, rows.numel() + 1, device=rows.device)).sum())


def make(case: Case, device: str | torch.device) -> Tensors:
    """The inputs of `case` on `device`, without requires_grad; dO only if the case has a backward."""
    q_shape = (case.batch, case.heads, case.Nq, case.d)
    k_shape = (case.batch, case.kv_heads, case.Nk, case.d)
    v_shape = (case.batch, case.kv_heads, case.Nk, case.dv)
    shapes = {"q": q_shape, "k": k_shape, "v": v_shape}
    if case.has_backward:
        shapes["dO"] = (case.batch, case.heads, case.Nq, case.dv)
    drawn = {name: _draw(case, name, shape, torch.device(device)) for name, shape in shapes.items()}
    tensors = Tensors(**drawn)
    _shape_distribution(case, tensors)
    return lay_out(case, tensors)


def _draw(case: Case, name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """One contiguous tensor, element by element from its distribution."""

    def values(bits: Bits) -> torch.Tensor:
        if case.inputs == "sparse_ints":
            return _sparse_ints(bits(0))
        z = normal(bits(0))
        if case.inputs in SPREAD and name in "qk":
            return z * SPREAD[case.inputs]
        if case.inputs == "outliers" and name != "dO":
            return torch.where(uniform(bits(1)) < 0.001, z + 10.0 * normal(bits(2)), z)
        if case.inputs == "subnormal" and name == "v":
            return z * SMALL_V[case.dtype]
        if case.inputs == "near_overflow":
            if name == "v":
                return (z * LARGE_V).clamp(-LARGE_V_LIMIT, LARGE_V_LIMIT)
            return z * LARGE_DO if name == "dO" else torch.sign(z) * (LARGE_NORM_SQUARED / case.d) ** 0.5
        return z

    out = torch.empty(shape, dtype=torch_dtype(case), device=device)
    return fill(out, values, mix(case.seed) + ("q", "k", "v", "dO").index(name) + 1)


def _sparse_ints(bits: torch.Tensor) -> torch.Tensor:
    """-2, -1, 1, 2 with probability 5 % each, else 0: products and sums are exact in any format."""
    sign = 1 - 2 * ((bits >> 32) & 1)
    size = 1 + ((bits >> 33) & 1)
    return torch.where((bits & 0xFFFF) < 0.2 * 65536, sign * size, 0).to(torch.float32)


def _shape_distribution(case: Case, t: Tensors) -> None:
    """Write the parts that are not independent draws: given scores on channel 0, repeated rows, one-hot rows."""
    scale = case.softmax_scale or case.d**-0.5
    rows, keys = (torch.arange(n, device=t.q.device) for n in (case.Nq, case.Nk))
    if case.inputs == "constant_v" and case.Nk:
        t.v[:] = t.v[:, :, :1].clone()
    elif case.inputs == "repeated_k":
        t.k[:] = t.k[:, :, keys % DISTINCT_KEYS]
    elif case.inputs == "one_hot":
        t.q.zero_()
        t.k.zero_()
        t.q[:, :, rows, rows * 7 % case.d] = ONE_HOT_NATS / scale
        t.k[:, :, keys, keys % case.d] = 1.0
    elif case.inputs in ("neglse", "padded", "sink"):
        t.q[..., 0] = 1.0
        if case.inputs == "neglse":
            t.k[..., 0] = NEGLSE_NATS / scale
        elif case.inputs == "padded":
            t.k[..., 0] = 0.0
            t.k[:, :, : min(FIRST_TILE, case.Nk // 2), 0] = FIRST_TILE_NATS / scale
        else:
            t.k[..., 0] = 0.0
            low, high = SINK_NATS
            for head in range(case.kv_heads):
                t.k[:, head, :1] = 0.0
                t.k[:, head, :1, 0] = (low + (high - low) * head / max(1, case.kv_heads - 1)) / scale


def lay_out(case: Case, t: Tensors) -> Tensors:
    """The same values in the case's memory order; every view stays [batch, heads, N, d]."""
    if case.layout == "bshd":
        return Tensors(**{n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in t.items()})
    if case.layout == "packed":
        qkv = torch.stack([x.transpose(1, 2) for x in (t.q, t.k, t.v)], dim=2)  # [batch, N, 3, heads, d]
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        return Tensors(q, k, v, t.dO)
    return t


def rotate(tensors: Tensors, index: int) -> Tensors:
    """Rotation `index` of the inputs: new storage, same memory order, other answers that follow from the first.

    Index 0 is a copy. An odd index negates V. index // 2 = r rolls the kv heads by r and the query heads by r·group.
    `Reference.rotated` applies the same to the expected outputs.
    """
    heads, kv_heads = tensors.q.shape[1], tensors.k.shape[1]
    roll, group = index // 2, heads // kv_heads
    shifts = {"q": roll * group, "k": roll, "v": roll, "dO": roll * group}
    rotated = {}
    for name, tensor in tensors.detached().items():
        values = tensor.roll(shifts[name], dims=1) if roll else tensor
        rotated[name] = copy_in_order(-values if name == "v" and index % 2 else values, tensor)
    return Tensors(**rotated)


def copy_in_order(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` in a storage of its own, with the strides, storage offset and expanded dims of `like`."""
    expanded = [
        i for i, (size, step) in enumerate(zip(like.shape, like.stride(), strict=True)) if not step and size > 1
    ]
    shape = [1 if i in expanded else size for i, size in enumerate(like.shape)]
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, like.stride(), strict=True)) if values.numel() else 0
    size, gaps = like.storage_offset() + extent, like.storage_offset() + extent > math.prod(shape)
    storage = like.new_full((size,), torch.nan) if gaps else like.new_empty((size,))  # what lies between is no one's
    copy = storage.as_strided(shape, like.stride(), like.storage_offset())
    for i in expanded:
        values = values.narrow(i, 0, 1)
    copy.copy_(values)
    return copy.expand(like.shape)


def in_margins(tensor: torch.Tensor, fill_value: float, rows: int = 256) -> torch.Tensor:
    """A copy of `tensor`, same strides, inside a storage whose rest (`rows` of the last dim each side) is the fill.

    Reads outside the tensor meet the fill; writes outside it change the margins (see `margins`).
    """
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    margin = rows * max(1, tensor.shape[-1])
    storage = torch.full((extent + 2 * margin,), fill_value, dtype=tensor.dtype, device=tensor.device)
    view = storage.as_strided(tensor.shape, tensor.stride(), margin)
    view.copy_(tensor.detach())
    return view


def margins(guarded: torch.Tensor) -> torch.Tensor:
    """A copy of everything in a guarded tensor's storage that is not the tensor, as integers to compare bitwise."""
    width = {2: torch.int16, 4: torch.int32}[guarded.element_size()]
    storage = torch.empty(0, dtype=guarded.dtype, device=guarded.device).set_(guarded.untyped_storage())
    inside = torch.zeros_like(storage, dtype=torch.bool)
    inside.as_strided(guarded.shape, guarded.stride(), guarded.storage_offset()).fill_(True)
    return storage.view(width)[~inside]
