"""What stays open in torch around every later call, as settings to read and to put back: see `settings.py`.

A backend that enters one and never leaves it slows every call of the others, or changes what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import _autograd as autograd
from torch._C import (
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
)
from torch.overrides import _pop_mode


def _pop_function_modes(wanted: int) -> None:
    while _len_torch_function_stack() > wanted:
        _pop_mode()  # type: ignore[no-untyped-call]


def _pop_dispatch_modes(wanted: int) -> None:
    while _len_torch_dispatch_stack() > wanted:
        _pop_torch_dispatch_stack(None)


def _saves_through_hooks() -> bool:
    return autograd._top_saved_tensors_default_hooks(True) is not None


def _pop_hooks(_: bool) -> None:
    while _saves_through_hooks():
        autograd._pop_saved_tensors_default_hooks()


def _stop_profiler(_: bool) -> None:
    autograd._disable_profiler()


MODES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (_len_torch_function_stack, _pop_function_modes),
    (_len_torch_dispatch_stack, _pop_dispatch_modes),
    (_saves_through_hooks, _pop_hooks),
    (autograd._profiler_enabled, _stop_profiler),
)
"""How each is read and ended."""
