"""The exit code: a documented decision, never a count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fabench.diff.compare import Comparison, RowDiff
from fabench.diff.verdicts import GATES, JUDGED, UNCOMPARED, VERDICTS
from fabench.text import counted

PASSED, FAILED, USAGE, UNDECIDED = 0, 1, 2, 3
"""0: rows were compared and nothing is bad. 1: something bad. 2: nothing could be compared. 3: no decision."""


@dataclass(frozen=True)
class Gate:
    """The decision and its reasons, most important first."""

    code: int
    reasons: tuple[str, ...]

    @property
    def word(self) -> str:
        """passed, failed or undecided."""
        return {PASSED: "passed", FAILED: "failed", UNDECIDED: "undecided"}[self.code]


def gates(found: Comparison, row: RowDiff) -> bool:
    """True if this row alone makes the exit code 1."""
    return GATES.get(row.verdict) in found.options.fail_on and row.waiver is None


def decide(found: Comparison) -> Gate:
    """1 before 3 before 0; usage errors (2) have been raised before there was anything to decide."""
    bad = Counter(row.verdict for row in found.rows if gates(found, row))
    if bad:
        return Gate(FAILED, tuple(f"{bad[verdict]} {verdict}" for verdict in VERDICTS if bad[verdict]))
    doubts = _doubts(found)
    return Gate(UNDECIDED, tuple(doubts)) if doubts else Gate(PASSED, ())


def _doubts(found: Comparison) -> list[str]:
    limits, counts = found.options.limits, found.counts()
    if all(row.verdict in UNCOMPARED for row in found.rows):
        return ["no row is ok in both files: nothing was compared"]
    doubts = [f"{counts[verdict]} {verdict}" for verdict in ("NOT_COMPARABLE", "ENV_SHIFT") if counts[verdict]]
    judged = sum(counts[verdict] for verdict in JUDGED)
    few = sum(
        row.verdict == "INCONCLUSIVE" and row.at is not None and not found.context.tested[row.at] for row in found.rows
    )
    if few:
        doubts.append(f"{few} of {counted(judged, 'row')} with fewer than {limits.min_rounds} rounds")
    if counts["INCONCLUSIVE"] > limits.inconclusive_share * judged:
        doubts.append(f"{counts['INCONCLUSIVE']} of {judged} INCONCLUSIVE (limit {limits.inconclusive_share:.0%})")
    return doubts
