"""Every mutant and variant by name, for `fabench parity tests/mutants/gallery.py:NAME`."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants import addresses, backwards, lse, masks, numerics, states
from mutants.kernel import Kernel
from mutants.variants import VARIANTS

MODULES = (masks, numerics, addresses, lse, backwards, states)


def mutants() -> dict[str, Any]:
    """Class or function name -> a fresh kernel."""
    found: dict[str, Any] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if name[0] == "_":
                continue
            if inspect.isclass(value) and issubclass(value, Kernel) and value is not Kernel:
                found[name] = value()
            elif inspect.isfunction(value) and value.__module__ == module.__name__:
                found[name] = value
    return found


globals().update(mutants())
globals().update(VARIANTS)
