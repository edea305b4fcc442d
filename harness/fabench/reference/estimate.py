"""How long a reference will take, before computing it."""

from __future__ import annotations

from fabench.case import Case
from fabench.device import Device
from fabench.reference.sampling import SAMPLE

RATES: dict[str, tuple[float, float, float]] = {"cpu": (2e-3, 9.0e-8, 5.0e-10), "cuda": (2e-3, 1.2e-10, 1.0e-12)}
"""Seconds a tile, a pair, and a pair times head dim: the forward with two classes (measured; one CPU core)."""
BACKWARD = 2.0
"""A backward adds this many forwards."""


def estimate_seconds(case: Case, device: Device | str, *, rows: str = "full") -> float:
    """Predicted seconds of `compute(case, ..., rows=rows)` on a device type; within a factor of about three."""
    kind = device if isinstance(device, str) else device.type
    per_tile, per_pair, per_element = RATES["cuda" if kind.startswith("cuda") else "cpu"]
    shown = _shown_fraction(case)
    heads = case.batch * case.heads
    d = (case.d + case.dv) / 2

    def forward(queries: int, keys: int) -> float:
        pairs = queries * keys * shown * heads
        return per_tile * (1 + pairs / (1 << 22)) + pairs * (per_pair + per_element * d)

    if rows == "full":
        return forward(case.Nq, case.Nk) * (1 + BACKWARD * case.has_backward)
    queries, keys = min(case.Nq, SAMPLE), min(case.Nk, SAMPLE)
    seconds = forward(queries, case.Nk)
    if case.has_backward:
        seconds += BACKWARD * (forward(queries, case.Nk) + forward(case.Nq, keys)) + forward(case.Nq, case.Nk)
    return seconds


def _shown_fraction(case: Case) -> float:
    """About which part of all pairs is attended, from 33 queries."""
    if not case.Nq or not case.Nk or case.mask.is_full:
        return 1.0
    queries = [round(i * (case.Nq - 1) / 32) for i in range(33)]
    return sum(len(case.mask.keys(i)) for i in queries) / (len(queries) * case.Nk)
