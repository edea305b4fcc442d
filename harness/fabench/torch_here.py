"""torch as a child process imports it: all there and new enough, or one sentence that says what is wrong with it."""

from __future__ import annotations

import gc
import re
from typing import Any

from fabench.errors import DeviceError

OLDEST = (2, 9)
"""As pyproject.toml has it; an installation made without asking it may hold an older one."""
REMEDY = "install it (pytorch.org/get-started)"


def imported() -> Any:
    """The module. Raises DeviceError if it cannot be imported, is left over from a removed one, or is too old."""
    collecting = gc.isenabled()
    gc.disable()  # nothing of what comes in goes again: looking through them takes a sixth of the import's time
    try:
        import torch

        version, _ = str(torch.__version__), (torch.Tensor, torch.cuda, torch.backends)
    except Exception as error:  # a broken build may raise anything
        raise DeviceError(f"'torch' must be importable, got {type(error).__name__}: {error}; {REMEDY}") from error
    finally:
        if collecting:
            gc.enable()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise DeviceError(f"'torch' must be {oldest} or newer, got {version}; {REMEDY}")
    return torch
