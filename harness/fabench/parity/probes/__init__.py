"""The probes: one file each, with `run(bench) -> Verdict`; a wrong kernel raises `Failed`.

A probe's file is found by its name in `fabench.parity.trial.PROBES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from fabench.parity.trial import ProbeName

if TYPE_CHECKING:
    from fabench.parity.bench import Bench, Verdict


def probe(name: ProbeName) -> Callable[[Bench], Verdict]:
    """The function of a probe."""
    return cast("Callable[[Bench], Verdict]", importlib.import_module(f"fabench.parity.probes.{name}").run)
