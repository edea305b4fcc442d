"""Process-wide settings, torch's and Python's: what one backend changes must not become another's speed or fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fabench.modes import MODES
from fabench.precisions import PRECISIONS
from fabench.process_settings import PROCESS_SETTINGS, hard_limits, lowered
from fabench.torch_internals import attribute, pair

_entered: list[Any] = []
"""Modes that were entered to undo others; one that is collected would undo itself."""


def _has_default_device() -> bool:
    """True if torch.set_default_device was called: also for the CPU, it puts a mode in the way of every call."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None


def _drop_default_device(_: bool) -> None:
    torch.set_default_device(None)


def _set_inference_mode(wanted: bool) -> None:
    mode = torch.inference_mode(wanted)
    mode.__enter__()
    _entered.append(mode)


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_has_default_device, _drop_default_device),  # itself a mode: before those
    *MODES,
    (torch.is_inference_mode_enabled, _set_inference_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", "cuda")
    ),
    attribute(torch.backends.mkldnn, "enabled"),
    attribute(torch.backends.cudnn, "enabled"),
    *(
        pair(torch.backends.cuda, f"{name}_sdp_enabled", f"enable_{name}_sdp")
        for name in ("flash", "mem_efficient", "math", "cudnn")
    ),
    pair(torch._C, "_get_sdp_priority_order", "_set_sdp_priority_order"),
    pair(torch._C, "_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    *PRECISIONS,
)
"""How each is read and set."""

CUDA_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.cuda.current_device, torch.cuda.set_device),
    (torch.cuda.current_stream, torch.cuda.set_stream),
)
"""The same, where a GPU is in use: the engine's stream must be the current one when a backend is called."""


def multiply_exactly() -> None:
    """TF32 and reduced-precision reductions off: how every process that checks or measures multiplies.

    Compilers keep what they compiled under these settings, so that who compiles ahead of a run must set them too.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


class Settings:
    """The settings as they were when this was made; cheap enough to restore before every window."""

    def __init__(self) -> None:
        settings = (*PROCESS_SETTINGS, *SETTINGS, *(CUDA_SETTINGS if torch.cuda.is_initialized() else ()))  # type: ignore[no-untyped-call]
        self._kept: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []
        for read, write in settings:
            with contextlib.suppress(AttributeError, RuntimeError):  # another version of torch may not have it
                self._kept.append((read, write, read()))
        self._hard = hard_limits()

    def restore(self) -> None:
        """Set what has changed since."""
        for read, write, was in self._kept:
            with contextlib.suppress(RuntimeError):  # torch refuses to read TF32 set through its newer interface
                if read() == was:
                    continue
            with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):
                write(was)

    def lost(self) -> bool:
        """True if something has changed for good since this was last asked: a hard limit could not be raised again."""
        before, self._hard = self._hard, hard_limits()
        return lowered(before, self._hard)
