"""What an undeclared function takes, found by asking it: a design over what it refuses would cover nothing. No torch.

One small call for each dtype, head dim and option; a refusal narrows the facts, anything else is left to the battery.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fabench.backend import Facts
from fabench.case import Case
from fabench.parity.axes import DIMS
from fabench.parity.battery import Request
from fabench.parity.trial import Result, Trial

Ask = Callable[[Trial], list[Result]]
BASE: dict[str, Any] = {"batch": 1, "heads": 2, "kv_heads": 2, "Nq": 64, "Nk": 64}


def scout(facts: Facts, request: Request, ask: Ask) -> tuple[Facts, list[Result]]:
    """The facts a bare function has shown, and its refusals. Declared facts come back as they are."""
    if not facts.bare:
        return facts, []
    refusals: list[Result] = []

    dead = False

    def takes(**fields: Any) -> bool:
        nonlocal dead
        case = Case(**{**BASE, "d": 64, **fields})
        if facts.case_reasons(case):
            return False
        results = ask(Trial(case, ("type",)))
        dead |= any(r.ending in ("crashed", "timeout") for r in results)
        refused = [r for r in results if r.ending == "unsupported"]
        refusals.extend(refused)
        return not refused

    dims = [member["d"] for members in DIMS for member in members if "dv" not in member]
    dtypes = [t for t in facts.dtypes if not request.dtypes or t in request.dtypes]
    base = next(((t, d) for d in dims for t in dtypes if takes(dtype=t, d=d)), None)
    if base is None or dead:  # the battery says so, without a worker for every question
        return facts, refusals
    dtype, d = base
    taken_dtypes = tuple(t for t in dtypes if t == dtype or takes(dtype=t, d=d))
    taken_dims = tuple(n for n in dims if n == d or takes(dtype=dtype, d=n))
    shown = dataclasses.replace(
        facts,
        dtypes=taken_dtypes,
        head_dims=None if len(taken_dims) == len(dims) else taken_dims,
        dv_differs=any(takes(dtype=dtype, d=a, dv=b) for a, b in _pairs(taken_dims)),
        gqa=takes(dtype=dtype, d=d, heads=4),
        empty=takes(dtype=dtype, d=d, Nk=0) and takes(dtype=dtype, d=d, Nq=0),
    )
    return shown, refusals


def _pairs(dims: Sequence[int]) -> list[tuple[int, int]]:
    """(d, dv) of the axis whose both dims are taken."""
    members = [m for members in DIMS for m in members if "dv" in m]
    return [(m["d"], m["dv"]) for m in members if m["d"] in dims and m["dv"] in dims]
