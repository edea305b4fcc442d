"""Does a file that can be read also hold together? What `fabench validate` looks at beyond the schema."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping

from fabench.case import row_id
from fabench.cost import CONVENTION, cost
from fabench.dtypes import DTYPES
from fabench.names import Status
from fabench.records import Row
from fabench.resultfile.reader import ResultFile, case_of
from fabench.text import counted

TOLERANCE = 1e-9
"""Relative; a number went through JSON's decimal form and back."""
ORDER = ("min", "p10", "p25", "median", "p75", "p90", "max")
"""Quantiles from small to large."""
RISING = "'quantiles' must have a median and not fall from min to max"


def rising(quantiles: Mapping[str, float]) -> bool:
    """True if quantiles are such as a measurement has; a published figure has the median alone."""
    known = [quantiles[name] for name in ORDER if name in quantiles]
    return "median" in quantiles and known == sorted(known)


def problems(result: ResultFile) -> list[str]:
    """A sentence for each thing in the file that contradicts another; none of a file that fabench wrote."""
    found = [f"row '{row.row_id}' round {row.round}: {text}" for row in result.rows for text in _row_problems(row)]
    counts = Counter(row.status for row in result.rows)
    if result.footer is not None and result.truncated is None and Counter(result.footer.status_counts) != counts:
        found.append(f"the footer counts {_counts(result.footer.status_counts)}, and the rows are {_counts(counts)}")
    if result.complete and len(result.rows) < result.header.planned_rows:
        planned = counted(result.header.planned_rows, "row is", "rows are")
        found.append(f"the footer says complete, and {len(result.rows)} of {planned} there")
    return found


def _counts(counts: Mapping[Status, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no row"


def _row_problems(row: Row) -> Iterator[str]:
    case = case_of(row.key)
    if row.row_id != row_id(case, row.backend):
        yield f"its id must be '{row_id(case, row.backend)}' for its key and backend"
    if row.status != "ok":
        if row.samples_ns or row.quantiles or row.utilization:
            yield f"a row that is {row.status} must have no speed"
        if row.published is None and row.detail is None:
            yield f"a row that is {row.status} must have a detail that says why"
        return
    if row.published is None and row.parity is None and "unchecked" not in row.flags:
        yield "a row that is ok must have a parity, or the flag 'unchecked'"
    if row.published is None and row.method is None:
        yield "a row that is ok must have a method"
    yield from _sample_problems(row)
    if row.cost is not None and row.cost.convention == CONVENTION and case.dtype in DTYPES:
        expected = cost(case)
        for name in ("pairs", "flops", "ideal_bytes"):
            if getattr(row.cost, name) != getattr(expected, name):
                yield f"cost.{name} must be {getattr(expected, name)} for its case, got {getattr(row.cost, name)}"


def _sample_problems(row: Row) -> Iterator[str]:
    if row.quantiles is not None and not rising(row.quantiles):
        yield f"{RISING}, got {row.quantiles}"
    if not row.samples_ns or row.quantiles is None:
        if row.published is None and "unchecked" not in row.flags and not row.samples_ns:
            yield "a row that is ok must have samples_ns"
        return
    if row.n != len(row.samples_ns):
        yield f"n must count the samples, got {row.n} for {len(row.samples_ns)}"
    for name, expected in {
        "median": statistics.median(row.samples_ns),
        "min": min(row.samples_ns),
        "max": max(row.samples_ns),
    }.items():
        if (got := row.quantiles.get(name)) is None or not math.isclose(got, expected, rel_tol=TOLERANCE):
            yield f"quantiles.{name} must be {expected} of its samples, got {got}"
