"""A comparison for GitHub Actions: annotations on stdout, and a table for the step's summary."""

from __future__ import annotations

import os
from pathlib import Path

from fabench.diff.compare import RowDiff
from fabench.diff.gate import gates
from fabench.diff.report import Report, summary
from fabench.diff.verdicts import Verdict
from fabench.output_files import writing
from fabench.text import counted
from fabench.views.diff_table import text
from fabench.views.junit import describe

MOST = 10
"""GitHub shows this many annotations of a kind for a step and drops the rest."""
WARNED: tuple[Verdict, ...] = ("NOT_COMPARABLE", "ENV_SHIFT", "INCONCLUSIVE")
SUMMARY_BYTES = 1_000_000
"""A step's summary may hold 1 MiB; more is refused whole."""


def commands(report: Report) -> str:
    """Workflow commands: ::error for rows that gate, ::warning for undecided ones, ::notice for the summary."""
    rows, found = report.ordered(), report.found
    lines = [
        *_commands("error", report, [row for row in rows if gates(found, row)]),
        *_commands("warning", report, [row for row in rows if row.verdict in WARNED]),
        f"::notice title=fabench diff::{_data(summary(report))}",
    ]
    return "\n".join(lines)


def _commands(kind: str, report: Report, rows: list[RowDiff]) -> list[str]:
    """One command a row; the last of too many says how many there are."""
    shown = rows if len(rows) <= MOST else rows[: MOST - 1]
    lines = [
        f"::{kind} title={_property(f'{row.verdict} {row.pair.backend}')}::"
        f"{_data(f'{row.pair.case.label()}: {describe(report.found, row)}')}"
        for row in shown
    ]
    left = len(rows) - len(shown)
    return [*lines, f"::{kind} title=fabench diff::{counted(left, 'more row')}, see the table"] if left else lines


def write_summary(report: Report) -> None:
    """Append the table to the step's summary, if this runs in a GitHub step."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    table = text(report, "github")
    if len(table.encode()) > SUMMARY_BYTES:
        table = f"**{summary(report)}**\n\nThe table is too long for a step's summary; see the log."
    with writing(Path(path)), open(path, "a", encoding="utf-8") as stream:
        stream.write(f"## fabench diff\n\n{table}\n")


def _data(text: str) -> str:
    """Escaped as the runner reads a command's message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped as the runner reads a command's properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
