"""A forward and its backward as one function that autograd, torch.compile and CUDA graphs see. Needs torch.

Under torch.compile it is a pair of opaque operators. Called eagerly it is a plain autograd function, because the way of
an operator through the dispatcher and back takes longer than everything else that a short call does on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


class Layout(NamedTuple):
    """All of a tensor but its address and its values: what may decide how a kernel is launched."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def layout(t: Tensor) -> Layout:
    """The tensor's layout."""
    return Layout(t.shape, t.stride(), t.dtype, t.device)


_NOTHING = nullcontext()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the current one, which costs next to nothing where it is."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return _NOTHING
    return torch.cuda.device(device)


def is_eager(*tensors: Tensor) -> bool:
    """True if plain tensors are computed with here and now: nothing traces, fakes, or watches for operators."""
    return (
        not torch.compiler.is_compiling()
        and all(type(t) is Tensor for t in tensors)
        and _get_current_dispatch_mode() is None
    )


class AttentionOp:
    """forward(q, k, v, *numbers) -> (O, LSE) with backward(dO, dLSE, q, k, v, O, LSE, *numbers) -> (dQ, dK, dV).

    Both have annotated parameters, from which the operators' schemas are read; dLSE may be None. O is
    [batch, heads, Nq, dv] in q's dtype, LSE [batch, heads, Nq] float32, and gradients are like their tensors, all
    contiguous. A second derivative is refused.
    """

    def __init__(self, name: str, forward: Callable[..., Pair], backward: Callable[..., Triple]) -> None:
        self.forward = torch.library.custom_op(f"fabench::{name}_forward", forward, mutates_args=())
        self.backward = torch.library.custom_op(f"fabench::{name}_backward", backward, mutates_args=())
        self.forward.register_fake(_fake_forward)
        self.backward.register_fake(_fake_backward)
        self.forward.register_autograd(_differentiating(self.backward), setup_context=_save)
        self._forward = forward
        self._function: Any = type(
            name,
            (torch.autograd.Function,),
            {
                "forward": staticmethod(forward),
                "setup_context": staticmethod(_save),
                "backward": staticmethod(torch.autograd.function.once_differentiable(_differentiating(backward))),
            },
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Pair:
        """(O, LSE)."""
        if not is_eager(q, k, v):
            O, LSE = self.forward(q, k, v, *numbers)
            return O, LSE
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            O, LSE = self._function.apply(q, k, v, *numbers)
            return O, LSE
        return self._forward(q, k, v, *numbers)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Pair:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_backward(dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Triple:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Pair) -> None:
    q, k, v, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiating(backward: Callable[..., Triple]) -> Callable[..., tuple[Tensor | None, ...]]:
    def differentiate(ctx: Any, dO: Tensor | None, dLSE: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, O, LSE = ctx.saved_tensors
        gradients = backward(torch.zeros_like(O) if dO is None else dO, dLSE, q, k, v, O, LSE, *ctx.numbers)
        return (*gradients, *(None for _ in ctx.numbers))

    return differentiate
