"""NVML for one question, where it is there: the library, started and ended around what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def opened() -> Iterator[Any]:
    """The module pynvml, initialised; None where the library or the driver is missing, or the two do not match."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
