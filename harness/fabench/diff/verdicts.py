"""The verdicts, what each means, and the ones that follow from statuses alone, before any time is looked at."""

from __future__ import annotations

from typing import Literal, get_args

from fabench.names import SKIPPED, Status

Verdict = Literal[
    "BROKEN",
    "MISSING",
    "COVERAGE_LOST",
    "LESS_EFFICIENT",
    "REGRESSED",
    "NOT_COMPARABLE",
    "ENV_SHIFT",
    "INCONCLUSIVE",
    "STILL_FAILING",
    "IMPROVED",
    "FIXED",
    "NEW",
    "SAME",
    "SHOWN",
    "PUBLISHED",
    "SKIPPED",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""In the order of a report: what gates first, then what leaves the gate undecided, then information."""

MEANING: dict[Verdict, str] = {
    "BROKEN": "ok in old; wrong, crashed, timed out, out of memory or failing in new",
    "MISSING": "in old, absent in new, and nothing that narrowed the new run explains it",
    "COVERAGE_LOST": "ok in old; refused, unavailable or predicted not to fit in new",
    "LESS_EFFICIENT": "its share of the card's roofline, or its ratio to the anchor, fell by more than allowed",
    "REGRESSED": "slower by more than the margin, beyond doubt",
    "NOT_COMPARABLE": "measured by different rules or on different hardware: no verdict on time",
    "ENV_SHIFT": "the card itself moved: its canary, its clock, or a thermal or power brake",
    "INCONCLUSIVE": "neither a change beyond the margin is shown nor its absence; the row says what would decide",
    "STILL_FAILING": "not ok in either file",
    "IMPROVED": "faster by more than the margin, beyond doubt",
    "FIXED": "failed in old, ok in new",
    "NEW": "absent or skipped in old",
    "SAME": "no change larger than the margin (across sessions: `equivalence_cross_session`), shown and not assumed",
    "SHOWN": "times of two different cards, side by side and not judged",
    "PUBLISHED": "one of the two is a figure from a paper: shown, never judged",
    "SKIPPED": "skipped in both for a reason each file holds, or left out by what narrowed the new run",
}

GATES: dict[Verdict, str] = {
    "REGRESSED": "regressed",
    "BROKEN": "broken",
    "MISSING": "missing",
    "COVERAGE_LOST": "coverage_lost",
    "LESS_EFFICIENT": "regressed",
}
"""Verdict -> the word of `--fail-on` that makes it exit 1."""

JUDGED: tuple[Verdict, ...] = ("REGRESSED", "IMPROVED", "SAME", "INCONCLUSIVE")
"""Verdicts on time: INCONCLUSIVE rows are counted as a share of these."""

UNCOMPARED: tuple[Verdict, ...] = ("MISSING", "STILL_FAILING", "NEW", "SKIPPED")
"""Verdicts of rows that did not work in both files: a report of nothing else has compared nothing."""


def by_status(old: Status | None, new: Status | None, excluded: bool) -> Verdict | None:
    """The verdict that two statuses settle, or None where both are ok and the times decide. None as a status: absent.

    `excluded`: what narrowed the new run leaves this row out.
    """
    if old is None:
        return "NEW"
    if new is None:
        return "SKIPPED" if excluded else "MISSING"
    if old == "ok":
        return None if new == "ok" else "COVERAGE_LOST" if new in SKIPPED else "BROKEN"
    if new == "ok":
        return "NEW" if old in SKIPPED else "FIXED"
    if old in SKIPPED:
        return "SKIPPED" if new in SKIPPED else "NEW"
    return "STILL_FAILING"
