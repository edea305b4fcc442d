"""`fabench diff`: two result files compared so that a CI can trust the answer (docs/diff.md).

side.py       a file read as a stream into arrays by row
pairs.py      rows of two files side by side; filters.py which absences are explained
links.py      hardware, session, canaries and method of a pair: may its times be judged, with which margin
estimates.py  shift and variance of each row; winsor.py, moderated.py, tau.py its parts
evidence.py   intervals, margin tests, guard, equivalence, rounds needed
compare.py    one verdict a row; verdicts.py what they mean
cross.py      two cards side by side
gate.py       the exit code
report.py     everything as plain data
noise.py      the session-to-session noise of a card, from A/A sessions
"""

from __future__ import annotations

from fabench.diff.compare import Comparison, Options, RowDiff, compare_files
from fabench.diff.cross import side_by_side, unjudged
from fabench.diff.gate import Gate, decide
from fabench.diff.geomean import geomeans
from fabench.diff.notes import footnotes
from fabench.diff.report import Report, as_json, summary
from fabench.diff.side import Side, load
from fabench.diff.thresholds import Thresholds

__all__ = [
    "Comparison",
    "Gate",
    "Options",
    "Report",
    "RowDiff",
    "Side",
    "Thresholds",
    "as_json",
    "judge",
    "load",
    "summary",
]


def judge(old: Side, new: Side, options: Options) -> Report:
    """Compare two files and decide. Raises UsageError if they have no row in common."""
    found, view = compare_files(old, new, options), None
    notes: list[str] = []
    if options.cross_gpu:
        found, view = side_by_side(found)
        notes = unjudged(view) if options.gate_efficiency is not None else []
    return Report(found, decide(found), tuple(geomeans(found)), (*notes, *footnotes(found)), view)
