"""Rows of a comparison as the axes of a table see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from fabench.case import Case
from fabench.diff.compare import RowDiff
from fabench.views.axes import Shape
from fabench.views.outcomes import Outcome


@dataclass(frozen=True)
class _Problem:
    """What the axes of `SHAPE` and 'backend' read of an outcome."""

    case: Case
    backend: str


def problem(row: RowDiff) -> Outcome:
    """The row as an axis reads it."""
    return of_case(row.pair.case, row.pair.backend)


def of_case(case: Case, backend: str = "") -> Outcome:
    """A case as an axis reads it: axes of the problem look at nothing else."""
    return cast("Outcome", _Problem(case, backend))


def problems(rows: Sequence[RowDiff]) -> list[Outcome]:
    """The rows as the axes read them."""
    return [problem(row) for row in rows]


def fixed(shape: Shape) -> tuple[str, ...]:
    """A caption's line of what all problems have in common."""
    return (", ".join(shape.fixed),) if shape.fixed else ()
