"""Outcomes as plain data, one record an outcome: csv for a spreadsheet, json for a program. Base units throughout."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from fabench.views.notes import about
from fabench.views.outcomes import Outcome
from fabench.views.values import VALUES


def flat(outcome: Outcome, values: Sequence[str] = ()) -> dict[str, Any]:
    """One outcome: its case, backend, device, file, verdict, and the named values (all if none are named).

    Another file's that stands beside ours is said to be of its own file and device. Names carry the base unit; a number
    that is not known, or that a failure has not, is None.
    """
    own = outcome.origin or outcome
    low, high = outcome.interval_ns or (None, None)
    record: dict[str, Any] = {
        **outcome.case.key,
        "backend": outcome.backend,
        "device": own.device,
        "file": own.file,
        "regime": own.regime,
        "row_id": outcome.rows[0].row_id,
        "status": outcome.status,
        "rounds": len(outcome.rows),
        "samples": sum(row.n or 0 for row in outcome.rows),
    }
    for name in values or VALUES:
        record[VALUES[name].base] = VALUES[name].of(outcome)
    return record | {"ci_low_ns": low, "ci_high_ns": high, "flags": list(outcome.flags), "notes": about(outcome)}


def as_json(outcomes: Sequence[Outcome], values: Sequence[str] = ()) -> str:
    """A JSON array of `flat` records."""
    return json.dumps([flat(outcome, values) for outcome in outcomes], indent=1, ensure_ascii=False, allow_nan=False)


def as_csv(outcomes: Sequence[Outcome], values: Sequence[str] = ()) -> str:
    """A header line and a line an outcome; what is not known is empty, lists are joined by '; '."""
    stream = io.StringIO()
    records = [flat(outcome, values) for outcome in outcomes]
    writer = csv.DictWriter(stream, records[0] if records else [], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _csv_text(value) for name, value in record.items()})
    return stream.getvalue().rstrip("\n")


def _csv_text(value: object) -> object:
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value)) if value and isinstance(value[0], str) else ":".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
