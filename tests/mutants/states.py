"""Kernels that misbehave beside computing: memory, state, the form of their answer, the process."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import torch

from mutants.kernel import Call, Kernel


class InputOverwritten(Kernel):
    """Scales q in place, as a kernel that saves a buffer does."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        out = super().forward(q, k, v, call)
        q.mul_(call.scale)
        return out


class Empty(Kernel):
    """Allocates the output and launches nothing."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return torch.empty_like(O), LSE


class CachedFirstResult(Kernel):
    """Remembers results by shape."""

    def __init__(self) -> None:
        self.results: dict[Any, Any] = {}

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        key = (q.shape, k.shape, v.shape, q.dtype, q.data_ptr(), k.data_ptr(), v.data_ptr(), str(call))
        if key not in self.results:
            self.results[key] = super().forward(q, k, v, call)
        O, LSE = self.results[key]
        return O.clone(), LSE.clone()


class SameMemory(Kernel):
    """One output buffer a shape, handed out again and again."""

    def __init__(self) -> None:
        self.buffers: dict[Any, torch.Tensor] = {}

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        buffer = self.buffers.setdefault((O.shape, O.dtype), torch.empty_like(O))
        return buffer.copy_(O).view(O.shape), LSE


class LastForwardRemembered(Kernel):
    """What the backward pass needs is kept on the module, where the next forward overwrites it."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.saved = super().forward(q, k, v, call)
        return tuple(x.clone() for x in self.saved)

    def backward(self, q: Any, k: Any, v: Any, O: Any, LSE: Any, dO: Any, call: Call) -> Any:
        return super().backward(q, k, v, *self.saved, dO, call)


class WorkspaceNotZeroed(Kernel):
    """dQ is accumulated into memory that was never cleared."""

    def backward(self, q: Any, k: Any, v: Any, O: Any, LSE: Any, dO: Any, call: Call) -> Any:
        dQ, dK, dV = super().backward(q, k, v, O, LSE, dO, call)
        return torch.empty_like(dQ) + dQ, dK, dV


class WritesPastItsOutput(Kernel):
    """One row too many is written."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        out = torch.empty(O.shape, dtype=O.dtype)
        out.copy_(O)
        import ctypes

        if out.numel() and self.room(out):
            ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 4)
        return out, LSE

    @staticmethod
    def room(out: torch.Tensor) -> bool:
        """Only where a margin follows: elsewhere this would corrupt the test's own heap."""
        after = out.data_ptr() + out.numel() * out.element_size()
        import ctypes

        return ctypes.string_at(after, 8) == b"\xa5" * 8


class Racy(Kernel):
    """Every third call loses a row."""

    def __init__(self) -> None:
        self.calls = 0

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        self.calls += 1
        if self.calls % 3 == 0 and O.numel():
            O[:, :, -1] = O[:, :, 0] * 1.5
        return O, LSE


class NanLaundered(Kernel):
    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return O.nan_to_num(0.0), LSE


class NanShared(Kernel):
    """One scale for all rows, found from all of them and divided out again, as of a quantized output."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return O + 0 * O.abs().amax() if O.numel() else O, LSE


class KeysCachedByAddress(Kernel):
    """K is converted once for each place in memory."""

    def __init__(self) -> None:
        self.converted: dict[Any, torch.Tensor] = {}

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        key = (k.data_ptr(), k.shape, k.stride(), k.dtype)
        return super().forward(q, self.converted.setdefault(key, k.detach().clone()), v, call)


class ScaledInPlaceAndBack(Kernel):
    """Q is scaled where it lies, and divided by the scale in the end: only the roundings stay."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        if q.numel():
            q.data.mul_(0.3).div_(0.3)
        return O, LSE


class WritesLate(Kernel):
    """The second half of the rows is written by a thread that nobody waits for."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        half = slice(O.shape[2] // 2, None)
        rest = O[:, :, half].clone()
        O[:, :, half] = 0

        def write() -> None:
            time.sleep(0.003)
            O.data[:, :, half] = rest

        threading.Thread(target=write).start()
        return O, LSE


class Zeros(Kernel):
    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return torch.zeros_like(O), LSE


class Constant(Kernel):
    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return torch.full_like(O, 0.75), LSE


def takes_any_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Floor division: heads that kv_heads does not divide are computed with whatever head comes out."""
    heads = (torch.arange(q.shape[1]) * k.shape[1] // q.shape[1]).clamp(max=k.shape[1] - 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k[:, heads], v[:, heads], is_causal=causal)


def returns_none(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return None


def returns_a_triple(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return q, k, v


def returns_other_shape(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1] + 1)


def returns_other_dtype(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)


def returns_its_input(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return q[..., : v.shape[-1]]


class Wrapped(torch.Tensor):
    pass


def returns_a_subclass(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).as_subclass(Wrapped)


def exits(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    sys.exit(3)


def aborts_in_fp32(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    if q.dtype == torch.float32:
        os.abort()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def hangs_at_97(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    if q.shape[2] == 97:
        time.sleep(3600)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def raises_late(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    raise RuntimeError("the launch failed")
