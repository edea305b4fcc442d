"""Triton's interpreter, which runs the kernels on the CPU: whether it is on, and a repair it needs."""

from __future__ import annotations

from typing import Any

import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""True if TRITON_INTERPRET=1 was set before triton was imported: kernels then run on the CPU, slowly."""


def repair() -> None:
    """Let loop bounds be run-time scalars again under NumPy 2.4.

    The interpreter holds scalars as arrays of one element and takes int() of them, which NumPy 2.4 refuses (seen with
    Triton 3.6). Newer versions without the patched function need, and get, nothing.
    """
    from triton.runtime import interpreter

    original = getattr(interpreter, "_patch_lang_tensor", None)
    if original is None:
        return

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch
