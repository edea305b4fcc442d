"""torch's process-wide settings: what one backend changes must not become another's speed or accuracy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    _attribute(torch.backends.cuda.matmul, "allow_tf32"),
    _attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    _attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
)
"""How each is read and set."""


class TorchSettings:
    """The settings as they were when this was made; cheap enough to restore before every window."""

    def __init__(self) -> None:
        self._kept = [(read, write, read()) for read, write in SETTINGS]

    def restore(self) -> None:
        """Set what has changed since."""
        for read, write, was in self._kept:
            with contextlib.suppress(RuntimeError):  # torch refuses to read TF32 set through its newer interface
                if read() == was:
                    continue
            with contextlib.suppress(RuntimeError):
                write(was)
