"""One backend's part of a case, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter  # by name: a backend may replace it in the module
from typing import Any

from fabench.backend import Backend, Prepared
from fabench.names import Flag, Regime
from fabench.protocol import FIRST_ROW


@dataclass(frozen=True)
class Options:
    """What the command line and the suite settled for every case of the run."""

    regime: Regime = "burst"
    seconds: float = 0.5
    check: bool = True
    reference: str = "auto"
    """auto | full | sampled"""
    null_ns: float | None = None
    """The launch floor, from the canaries."""


@dataclass
class Job:
    """One backend's part of the case, and what is known of it so far."""

    row_id: str
    backend: Backend
    board_row: int
    describe: bool = True
    """Measure memory and kernel names too: once per case and backend, not in every round."""
    like: tuple[int, int] | None = None
    """K and n of the row of an older file that this one is measured like."""
    prepared: Prepared | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    flags: set[Flag] = field(default_factory=set)
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def call(self) -> Prepared:
        """The prepared backend; only after `prepare` went well."""
        assert self.prepared is not None
        return self.prepared


class Account:
    """The wall time of one case, booked to its rows part by part; what is left over is overhead."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._booked = 0.0

    def charge(self, job: Job, part: str, seconds: float) -> None:
        """Book time that is known to be this row's."""
        job.spent[part] = job.spent.get(part, 0.0) + seconds
        self._booked += seconds

    def settle(self, job: Job) -> dict[str, float]:
        """The row's `spent`. What has passed and is booked to nobody goes to the row that ends."""
        overhead = perf_counter() - self._began - self._booked
        self._booked += overhead
        total = sum(job.spent.values()) + overhead
        return {"total_s": total, **{part: s for part, s in job.spent.items() if part != "compile_s"}}


def first_board_row(index: int) -> int:
    """Board row of the case's `index`-th backend."""
    return FIRST_ROW + index
