"""Uninitialised memory that a kernel asks torch for, filled with a known byte and surrounded by margins."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.dlpack import from_dlpack

from fabench.text import counted

EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}
"""Operators that return uninitialised memory: outputs and workspaces come from them."""
MARGIN_BYTES = 1 << 14
MARGIN_BYTE = 0xA5


def runs_compiled() -> bool:
    """True if torch.compile has compiled anything in this process.

    Compiled code allocates past the dispatcher, and a frame that Dynamo meets under a mode is never compiled again.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters["frames"].values())


def fill_bytes(x: torch.Tensor, byte: int) -> torch.Tensor:
    """Fill all of `x`'s storage with one byte, and return `x`."""
    raw_bytes(x).fill_(byte)
    return x


def raw_bytes(x: torch.Tensor) -> torch.Tensor:
    """All of `x`'s storage as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


class Poisoned(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, uninitialised memory is filled with `byte`: 0xFF is NaN in every float format."""

    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte = byte

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through; fill what came back uninitialised."""
        out = func(*args, **(kwargs or {}))
        return fill_bytes(out, self.byte) if func in EMPTY and out.layout == torch.strided else out


class Guarded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, uninitialised memory lies between margins; `touched` says which were written to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[tuple[torch.Tensor, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through; move what came back uninitialised between margins."""
        out = func(*args, **(kwargs or {}))
        if func not in EMPTY or out.layout != torch.strided or not out.numel():
            return out
        size = out.element_size()
        margin = MARGIN_BYTES // size
        extent = 1 + sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True))
        storage = torch.empty(extent + 2 * margin, dtype=out.dtype, device=out.device)
        fill_bytes(storage, MARGIN_BYTE)
        self.storages.append((storage, list(out.shape)))
        # Through DLPack, so that the tensor's own storage starts here: torch's autograd assumes offset 0 of an empty.
        inside: torch.Tensor = from_dlpack(storage[margin : margin + extent])
        return inside.as_strided(out.shape, out.stride())

    def touched(self) -> str | None:
        """Which margin was written to, in words, or None."""
        for storage, shape in self.storages:
            raw = raw_bytes(storage)
            end = raw.numel() - MARGIN_BYTES
            for side, part in (("before", raw[:MARGIN_BYTES]), ("after", raw[end:])):
                changed = (part != MARGIN_BYTE).nonzero().flatten()
                if len(changed):
                    near = MARGIN_BYTES - int(changed[-1]) if side == "before" else int(changed[0])
                    written, away = counted(len(changed), "byte"), counted(near, "byte")
                    return f"{written} written {side} a tensor of shape {shape}, the nearest {away} away"
        return None
