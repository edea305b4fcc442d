"""The probes: one file each, with `run(bench) -> Verdict`; a wrong kernel raises `Failed`.

A probe's file is found by its name in `fabench.parity.trial.PROBES`; `type` has none, because the form of every answer
is checked whenever the kernel is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from fabench.parity.trial import ProbeName

if TYPE_CHECKING:
    from fabench.parity.bench import Bench, Verdict

HYGIENE: tuple[ProbeName, ...] = ("poison", "guard", "mutate", "stale", "repeat", "stream", "capture")
"""Probes of what a kernel does beside computing."""
EXACT: tuple[ProbeName, ...] = ("mask", "count", "addr", "one", "nan", "equivariance")
"""Probes without a tolerance that fit any shape."""


def probe(name: ProbeName) -> Callable[[Bench], Verdict]:
    """The function of a probe."""
    return cast("Callable[[Bench], Verdict]", importlib.import_module(f"fabench.parity.probes.{name}").run)
