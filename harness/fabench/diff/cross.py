"""Two cards side by side: each row's share of its own card's roofline, ratios to an anchor, and who wins each case.

Times of two cards are never judged. With `gate_efficiency` a row becomes LESS_EFFICIENT if its efficiency, or its speed
relative to the anchor backend, fell by more than that and the 95 % interval excludes less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fabench.case import Case
from fabench.diff.compare import Comparison, RowDiff, waive
from fabench.diff.evidence import quantile
from fabench.diff.side import Side
from fabench.diff.thresholds import percent
from fabench.records import CostRecord
from fabench.text import counted

Interval = tuple[float, float | None, float | None]
"""A ratio and its 95 % interval; None where there are too few rounds."""


@dataclass(frozen=True)
class CrossRow:
    """One row on two cards."""

    row: RowDiff
    old_eta: float | None
    new_eta: float | None
    """t_roof / t against the session's own canaries, t_roof = max(FLOPs/P, bytes/BW)."""
    old_sheet: float | None
    new_sheet: float | None
    """The same against the datasheet's peaks."""
    eta_ratio: Interval | None
    """new / old efficiency."""
    old_to_anchor: float | None
    new_to_anchor: float | None
    """t(anchor) / t within each card: above 1 is faster than the anchor."""
    anchor_ratio: Interval | None
    """new / old of the two: the ratio of ratios."""
    note: str
    """Why there is no efficiency."""


@dataclass(frozen=True)
class Winner:
    """The fastest backend of one case on each card."""

    case: Case
    old: str | None
    new: str | None
    certain: bool
    """The two differ, and on each card the interval of winner against the other card's winner excludes 1."""


@dataclass(frozen=True)
class Cross:
    """The side-by-side view of a comparison."""

    anchor: str | None
    rows: tuple[CrossRow, ...]
    winners: tuple[Winner, ...]


def side_by_side(found: Comparison) -> tuple[Comparison, Cross]:
    """The view, and the comparison with LESS_EFFICIENT verdicts where an efficiency gate was asked for."""
    anchor = found.options.anchor or _baseline(found)
    anchors = {row.pair.case: row for row in found.rows if row.pair.backend == anchor and _timed(found, row)}
    rows = tuple(_row(found, row, anchors.get(row.pair.case)) for row in found.rows if _timed(found, row))
    if (limit := found.options.gate_efficiency) is not None:
        fallen = {r.row.pair.row_id: falls for r in rows if (falls := _falls(r, limit, anchor))}
        judged = [
            _less_efficient(found, row, fallen[row.pair.row_id]) if row.pair.row_id in fallen else row
            for row in found.rows
        ]
        found = replace(found, rows=tuple(judged))
        by_id = {row.pair.row_id: row for row in judged}
        rows = tuple(replace(r, row=by_id[r.row.pair.row_id]) for r in rows)
    return found, Cross(anchor, rows, tuple(_winners(found)))


def unjudged(cross: Cross) -> list[str]:
    """How many rows an efficiency gate could not judge, as a note: a gate that sees nothing must not look like one."""
    judged = sum(
        any(ratio is not None and ratio[2] is not None for ratio in (row.eta_ratio, row.anchor_ratio))
        for row in cross.rows
    )
    left = len(cross.rows) - judged
    if not left and judged:
        return []
    why = "one round, or neither efficiency nor anchor"
    return [
        f"--gate-efficiency judged {judged} of {counted(len(cross.rows), 'row')} timed on both cards; others: {why}"
    ]


def _baseline(found: Comparison) -> str | None:
    names = [side.file.header.suite.get("baseline") for side in (found.new, found.old)]
    return next((name for name in names if isinstance(name, str)), None)


def _timed(found: Comparison, row: RowDiff) -> bool:
    return row.at is not None and math.isfinite(found.evidence.d[row.at]) and row.verdict != "PUBLISHED"


def _row(found: Comparison, row: RowDiff, anchor: RowDiff | None) -> CrossRow:
    assert row.at is not None
    link, d = found.links[row.at], float(found.evidence.d[row.at])
    a, b = row.pair.places
    note = _no_efficiency(found, row)
    old_eta = new_eta = eta_ratio = None
    if not note:
        old_cost, new_cost = found.old.rows[a].cost, found.new.rows[b].cost
        assert old_cost is not None
        assert new_cost is not None
        before, after = link.old.seconds(old_cost, row.pair.case.dtype), link.new.seconds(new_cost, row.pair.case.dtype)
        assert before is not None
        assert after is not None
        old_eta, new_eta = before[0] / _seconds(found.old, a), after[0] / _seconds(found.new, b)
        shift = math.log(after[0] / before[0]) - d
        spread = found.evidence.se[row.at] ** 2 + before[1] + after[1]
        eta_ratio = _interval(shift, spread, found.evidence.nu[row.at])
    return CrossRow(
        row,
        old_eta,
        new_eta,
        _sheet(found.old, a, row),
        _sheet(found.new, b, row),
        eta_ratio,
        *_to_anchor(found, row, anchor),
        note,
    )


def _no_efficiency(found: Comparison, row: RowDiff) -> str:
    """Why a row has no efficiency, or nothing."""
    assert row.at is not None
    link, dtype = found.links[row.at], row.pair.case.dtype
    a, b = row.pair.places
    costs = found.old.rows[a].cost, found.new.rows[b].cost
    if costs[0] is None or costs[1] is None:
        return "no cost was recorded"
    if costs[0].convention != costs[1].convention:
        return f"FLOPs are counted differently: {costs[0].convention} and {costs[1].convention}"
    if link.old.bound(costs[0], dtype) is None or link.new.bound(costs[1], dtype) is None:
        return f"no canary of {dtype} GEMM and copy on both cards"
    for roofline, side, place in ((link.old, found.old, a), (link.new, found.new, b)):
        if roofline.null_ns and _seconds(side, place) * 1e9 < found.options.limits.launch_bound * roofline.null_ns:
            return "launch-bound"
    return ""


def _sheet(side: Side, place: int, row: RowDiff) -> float | None:
    cost: CostRecord | None = side.rows[place].cost
    peaks = side.file.envs[min(side.envs[place])].peaks
    flops = peaks.flops.get(row.pair.case.dtype)
    if cost is None or not flops or not peaks.bandwidth:
        return None
    return max(cost.flops / flops, cost.ideal_bytes / peaks.bandwidth) / _seconds(side, place)


def _to_anchor(
    found: Comparison, row: RowDiff, anchor: RowDiff | None
) -> tuple[float | None, float | None, Interval | None]:
    if anchor is None or anchor.at is None or row.at is None or anchor.pair.row_id == row.pair.row_id:
        return None, None, None
    ratios = [
        _seconds(side, anchor.pair.places[which]) / _seconds(side, row.pair.places[which])
        for which, side in enumerate((found.old, found.new))
    ]
    evidence = found.evidence
    shift = float(evidence.d[anchor.at] - evidence.d[row.at])
    spread = float(evidence.se[anchor.at] ** 2 + evidence.se[row.at] ** 2)
    return ratios[0], ratios[1], _interval(shift, spread, min(evidence.nu[anchor.at], evidence.nu[row.at]))


def _interval(shift: float, variance: float, nu: float) -> Interval:
    if not (math.isfinite(variance) and nu > 0):
        return math.exp(shift), None, None
    reach = float(quantile(0.975, np.array([nu]))[0]) * math.sqrt(variance)
    return math.exp(shift), math.exp(shift - reach), math.exp(shift + reach)


def _seconds(side: Side, place: int) -> float:
    return float(side.median_ns[place]) / 1e9


def _falls(row: CrossRow, limit: float, anchor: str | None) -> list[tuple[float, str]]:
    """What fell by more than `limit` beyond doubt, the worst first: the share lost, and in words."""
    falls = []
    for what, ratio in (("efficiency", row.eta_ratio), (f"speed relative to {anchor}", row.anchor_ratio)):
        if ratio and ratio[2] is not None and ratio[2] < 1.0 - limit:
            upper = f"95 % interval up to {ratio[2]:.1%}, limit {percent(1.0 - limit)}"
            falls.append((1.0 - ratio[0], f"{what} fell to {ratio[0]:.1%} of what it was ({upper})"))
    return sorted(falls, reverse=True)


def _less_efficient(found: Comparison, row: RowDiff, falls: list[tuple[float, str]]) -> RowDiff:
    fall, reason = falls[0]
    return waive(found, replace(row, verdict="LESS_EFFICIENT", reason=reason), fall)


def _winners(found: Comparison) -> list[Winner]:
    cases: dict[Case, list[RowDiff]] = {}
    for row in found.rows:
        if row.verdict != "PUBLISHED":
            cases.setdefault(row.pair.case, []).append(row)
    out = []
    for case, rows in cases.items():
        if len({row.pair.backend for row in rows}) < 2:
            continue
        old, new = (_fastest(side, rows, which) for which, side in enumerate((found.old, found.new)))
        if old is None and new is None:
            continue
        certain = (
            old is not None
            and new is not None
            and old.pair.row_id != new.pair.row_id
            and _beats(found, old, new, 0)
            and _beats(found, new, old, 1)
        )
        out.append(Winner(case, old.pair.backend if old else None, new.pair.backend if new else None, certain))
    return out


def _fastest(side: Side, rows: list[RowDiff], which: int) -> RowDiff | None:
    timed = []
    for row in rows:
        place = (row.pair.old, row.pair.new)[which]
        if place is not None and side.status[place] == "ok" and side.times.count[place]:
            timed.append((_seconds(side, place), row.pair.row_id, row))
    return min(timed)[2] if timed else None


def _beats(found: Comparison, fast: RowDiff, slow: RowDiff, which: int) -> bool:
    """True if on card `which` the 95 % interval of slow / fast lies above 1. Both must be ok on both cards."""
    if fast.at is None or slow.at is None:
        return False
    side, evidence, variance = (found.old, found.new)[which], found.evidence, 0.0
    for row in (fast, slow):
        variance += float(evidence.variance[row.at]) * math.pi / 2 / int(side.times.count[row.pair.places[which]])
    shift = math.log(_seconds(side, slow.pair.places[which]) / _seconds(side, fast.pair.places[which]))
    low = _interval(shift, variance, min(evidence.nu[fast.at], evidence.nu[slow.at]))[1]
    return low is not None and low > 1.0
