"""The specification of attention: a tiled fp64 oracle for O, LSE, dQ, dK and dV, and how exact a kernel must be."""

from __future__ import annotations

from fabench.reference.merge import State, merge
from fabench.reference.oracle import Rows, compute
from fabench.reference.result import Expected, Reference
from fabench.reference_time import estimate_seconds

__all__ = ["Expected", "Reference", "Rows", "State", "compute", "estimate_seconds", "merge"]
