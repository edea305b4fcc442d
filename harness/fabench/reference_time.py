"""How long a reference will take, before computing it. No torch here: the plan asks too."""

from __future__ import annotations

from fabench.case import Case
from fabench.cost import pairs
from fabench.device import Device

SAMPLE = 512
"""Rows a head that are checked where a whole reference would take too long."""

RATES: dict[str, tuple[float, float, float]] = {"cpu": (2e-3, 9.0e-8, 5.0e-10), "cuda": (2e-3, 1.2e-10, 1.0e-12)}
"""Seconds a tile, a pair, and a pair times head dim: the forward with two classes (measured; one CPU core)."""
BACKWARD = 2.0
"""A backward adds this many forwards."""


def estimate_seconds(case: Case, device: Device | str, *, rows: str = "full") -> float:
    """Predicted seconds of `compute(case, ..., rows=rows)` on a device type; within a factor of about three."""
    kind = device if isinstance(device, str) else device.type
    per_tile, per_pair, per_element = RATES["cuda" if kind.startswith("cuda") else "cpu"]
    shown = pairs(case.mask) / (case.Nq * case.Nk) if case.Nq and case.Nk else 1.0
    heads = case.batch * case.heads
    d = (case.d + case.dv) / 2

    def forward(queries: int, keys: int) -> float:
        seen = queries * keys * shown * heads
        return per_tile * (1 + seen / (1 << 22)) + seen * (per_pair + per_element * d)

    if rows == "full":
        return forward(case.Nq, case.Nk) * (1 + BACKWARD * case.has_backward)
    queries, keys = min(case.Nq, SAMPLE), min(case.Nk, SAMPLE)
    seconds = forward(queries, case.Nk)
    if case.has_backward:
        seconds += BACKWARD * (forward(queries, case.Nk) + forward(case.Nq, keys)) + forward(case.Nq, case.Nk)
    return seconds
