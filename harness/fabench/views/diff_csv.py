"""A comparison as CSV: one line a row, worst first, numbers in base units."""

from __future__ import annotations

import csv
import io

from fabench.diff.report import Report, rows_json

COLUMNS = (
    "verdict",
    "gates",
    "backend",
    "case",
    "old_status",
    "new_status",
    "old_ns",
    "new_ns",
    "old_rounds",
    "new_rounds",
    "old_flags",
    "new_flags",
    "ratio",
    "ratio_low",
    "ratio_high",
    "rounds_needed",
    "reason",
    "waiver",
    "row_id",
    "rerun",
)
"""Columns taken from a row's JSON; the case's own fields follow, then the evidence."""
EVIDENCE = (
    "margin_kind",
    "margin",
    "equivalence_margin",
    "canary_move",
    "threshold",
    "d",
    "s2",
    "s2_nu",
    "variance",
    "session_variance",
    "se",
    "nu",
    "p_slow",
    "p_fast",
    "adjusted_slow",
    "adjusted_fast",
    "guard_slow",
    "guard_fast",
)
"""Columns taken from a row's evidence; empty for a row of which no time was weighed."""

_SEPARATOR = ":"
"""Between the parts of a window, and between flags."""


def as_csv(report: Report) -> str:
    """The file's text; what is not known is empty."""
    rows = list(rows_json(report.found, report.ordered()))
    fields = list(rows[0]["key"]) if rows else []
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*COLUMNS, *fields, *EVIDENCE])
    for row in rows:
        evidence = row["evidence"] or {}
        values = (*(row[c] for c in COLUMNS), *(row["key"][f] for f in fields), *(evidence.get(c) for c in EVIDENCE))
        writer.writerow(map(_text, values))
    return stream.getvalue()


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else _SEPARATOR.join(map(str, value)) if isinstance(value, list) else value
