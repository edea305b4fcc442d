"""A forward and its backward as one function that autograd, torch.compile and CUDA graphs see. Needs torch.

Under torch.compile it is a pair of opaque operators. Called eagerly it is a plain autograd function, because the way of
an operator through the dispatcher and back takes longer than everything else that a short call does on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
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
    """The tensor's layout. Raises TypeError for what is no tensor."""
    if not isinstance(t, Tensor):
        raise TypeError(f"q, k and v must be torch tensors, got {type(t).__name__}")
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


def is_transformed() -> bool:
    """True within a transform of functions: torch.func, forward-mode derivatives."""
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def is_wrapped(*tensors: Tensor | None) -> bool:
    """True if torch.func wrapped one of them; then it has no memory that a kernel could read."""
    return any(t is not None and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def window_of(window: Any) -> tuple[int, int] | None:
    """(left, right) as integers, or None. Raises ValueError unless `window` is None or two whole numbers."""
    if window is None:
        return None
    # A remainder, and not int(): nan and infinity have none, and torch.compile traces it.
    if not isinstance(window, (tuple, list)) or len(window) != 2 or any(side % 1 != 0 for side in window):
        raise ValueError(f"window must be (left, right), two whole numbers, got {window}")
    return int(window[0]), int(window[1])


LARGEST, SMALLEST = 2.0**127, 2.0**-126
"""Of a scale and a softcap: in float32 they must stay finite, also times log2(e), and not vanish."""


def check_numbers(scale: float, softcap: float) -> None:
    """Raise ValueError unless a kernel can compute with both in float32; a scale may be as small as it likes."""
    # Written out: torch.compile may trace the numbers as symbols, which it cannot put into messages ahead of need.
    if not -LARGEST <= scale <= LARGEST:
        raise ValueError(f"scale must be a finite number in float32, at most {LARGEST:.3g}, got {scale}")
    if softcap != 0 and not SMALLEST <= softcap <= LARGEST:
        raise ValueError(
            f"softcap must be 0 (off) or a positive number in float32, {SMALLEST:.3g} to {LARGEST:.3g}, got {softcap}"
        )
    if softcap != 0 and not -LARGEST <= scale / softcap <= LARGEST:
        raise ValueError(f"scale / softcap must be finite in float32, at most {LARGEST:.3g}, got {scale} / {softcap}")


class AttentionOp:
    """forward(q, k, v, *numbers) -> (O, LSE) with backward(dO, dLSE, q, k, v, O, LSE, *numbers) -> (dQ, dK, dV).

    Both have annotated parameters, from which the operators' schemas are read; dLSE may be None. O is
    [batch, heads, Nq, dv] in q's dtype, LSE [batch, heads, Nq] float32, and gradients are like their tensors, all
    contiguous. A second derivative is refused.
    """

    def __init__(self, name: str, forward: Callable[..., Pair], backward: Callable[..., Triple]) -> None:
        self.forward = torch.library.custom_op(f"fabench::{name}_forward", forward, mutates_args=())
        schema = torch.library.infer_schema(backward, mutates_args=())
        self.backward = torch.library.custom_op(
            f"fabench::{name}_backward", _checking(backward), mutates_args=(), schema=schema
        )
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
                "backward": staticmethod(_differentiating_once(backward, self.backward)),
            },
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Pair:
        """(O, LSE)."""
        if not is_eager(q, k, v):
            O, LSE = self.forward(q, k, v, *numbers)
            return O, LSE
        # Within a transform the function either gets tensors that are unwrapped, or torch refuses.
        if is_transformed() or (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
            O, LSE = self._function.apply(q, k, v, *numbers)
            return O, LSE
        return self._forward(q, k, v, *numbers)


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Pair:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_backward(dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Triple:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _checking(backward: Callable[..., Triple]) -> Callable[..., Triple]:
    """`backward` as an operator, which anyone can call: refuses what cannot be a forward's results and gradients."""

    def checked(
        dO: Tensor, dLSE: Tensor | None, q: Tensor, k: Tensor, v: Tensor, O: Tensor, LSE: Tensor, *numbers: Any
    ) -> Triple:
        rows, outputs = tuple(q.shape[:3]), (*q.shape[:3], v.shape[-1])
        for name, t, shape in (("dO", dO, outputs), ("O", O, outputs), ("LSE", LSE, rows), ("dLSE", dLSE, rows)):
            dtype = q.dtype if name in ("dO", "O") else torch.float32
            if t is not None and (tuple(t.shape), t.dtype, t.device) != (shape, dtype, q.device):
                raise ValueError(
                    f"{name} must have shape {shape}, be {dtype} and on {q.device}, as q and v are, "
                    f"got {tuple(t.shape)}, {t.dtype} and {t.device}"
                )
        return backward(dO, dLSE, q, k, v, O, LSE.contiguous(), *numbers)

    return checked


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


def _differentiating_once(
    backward: Callable[..., Triple], operator: Callable[..., Triple]
) -> Callable[..., tuple[Tensor | None, ...]]:
    """By `backward`; where a second derivative may follow by `operator`, through which torch refuses to take one."""

    def once(*tensors: Any) -> Triple:
        if not torch.is_grad_enabled():
            return backward(*tensors)
        if not is_wrapped(*tensors[:7]):
            return operator(*tensors)
        functorch = torch._C._functorch
        # torch.func.vjp's function is called after the transform was left, whose wrappers are then in the way.
        alive = [functorch.unwrap_if_dead(t) if isinstance(t, Tensor) else t for t in tensors]
        if is_wrapped(*(functorch.get_unwrapped(t) for t in alive[:7] if is_wrapped(t))):
            raise NotImplementedError("a second derivative of this attention is not computed")
        with torch.no_grad():
            return operator(*alive)

    return _differentiating(once)
