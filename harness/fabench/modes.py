"""What stays open in torch around every later call, as settings to read and to put back: see `settings.py`.

A backend that enters one and never leaves it slows every call of the others, or changes what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import _pop_mode

from fabench.torch_internals import internal

_functions, _dispatchers = internal("_len_torch_function_stack"), internal("_len_torch_dispatch_stack")
_pop_dispatcher = internal("_pop_torch_dispatch_stack")
_top_hooks, _pop_hook = (internal(f"_autograd._{verb}_saved_tensors_default_hooks") for verb in ("top", "pop"))
_profiles, _end_profile = internal("_autograd._profiler_enabled"), internal("_autograd._disable_profiler")


def _pop_function_modes(wanted: int) -> None:
    while _functions() > wanted:
        _pop_mode()  # type: ignore[no-untyped-call]


def _pop_dispatch_modes(wanted: int) -> None:
    while _dispatchers() > wanted:
        _pop_dispatcher(None)


def _saves_through_hooks() -> bool:
    return _top_hooks(True) is not None


def _pop_hooks(_: bool) -> None:
    while _saves_through_hooks():
        _pop_hook()


def _stop_profiler(_: bool) -> None:
    _end_profile()


MODES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (_functions, _pop_function_modes),
    (_dispatchers, _pop_dispatch_modes),
    (_saves_through_hooks, _pop_hooks),
    (_profiles, _stop_profiler),
)
"""How each is read and ended."""
