"""`fabench diff --explain ROW_ID`: every number that led to one verdict, in the order in which it was used."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fabench.diff.compare import Comparison, RowDiff, cycles
from fabench.diff.cross import Cross, CrossRow, Interval
from fabench.diff.gate import gates
from fabench.diff.report import Report
from fabench.diff.side import Side
from fabench.diff.verdicts import MEANING
from fabench.diff.winsor import winsorise
from fabench.errors import UsageError
from fabench.records import Row
from fabench.resultfile import iter_records
from fabench.stats import FEWEST, median_interval
from fabench.text import counted
from fabench.views.junit import rerun


def explain(report: Report, row_id: str) -> str:
    """The account of one row, whose samples are read again from both files: one beside each published figure for it.

    `row_id` may be shortened to as many characters as name one row. Raises UsageError for none or several.
    """
    return "\n\n".join(_account(report, row) for row in _find(report.found, row_id))


def _account(report: Report, row: RowDiff) -> str:
    found = report.found
    words = ",".join(sorted(found.options.fail_on)) or "none"
    lines = [
        f"row {row.pair.row_id}: {row.pair.backend} {row.pair.case.label()}",
        f"verdict {row.verdict}: {MEANING[row.verdict]}" + (f"; {_line(row.reason)}" if row.reason else ""),
        f"gates: {'yes' if gates(found, row) else 'no'} (--fail-on {words})",
        *([f"waived: {row.waiver.text()}"] if row.waiver else []),
        f"rerun: {rerun(found, row)}",
        "",
        *_rounds(found.old, row.pair.old, "old"),
        *_rounds(found.new, row.pair.new, "new"),
    ]
    if row.at is not None:
        lines += ["", *_link(found, row, row.at), "", *_numbers(found, row.at)]
    if report.cross is not None:
        lines += [line for one in report.cross.rows if one.row == row for line in ("", *_cross(report.cross, one))]
    return "\n".join(lines)


def _find(found: Comparison, row_id: str) -> list[RowDiff]:
    rows = [row for row in found.rows if row.pair.row_id.startswith(row_id)] if row_id else []
    exact = [row for row in rows if row.pair.row_id == row_id]
    ids = {row.pair.row_id for row in rows}
    if len(ids) != 1 and not exact:
        got = counted(len(ids), "row") if ids else "none"
        raise UsageError(
            f"'--explain' must name one row of the files by its row_id, got {got} for '{row_id}'; --csv lists them"
        )
    return exact or rows


def _rounds(side: Side, place: int | None, which: str) -> Iterator[str]:
    """Each round with its samples' median and interval."""
    if place is None:
        yield f"{which}: absent"
        return
    yield f"{which}: {side.path}: {side.status[place]}" + (
        f": {_line(message)}" if (message := side.messages.get(place)) else ""
    )
    latest: dict[int, Row] = {}
    for record in iter_records(side.path):
        if isinstance(record, Row) and record.row_id == side.rows[place].row_id:
            known = latest.get(record.round)
            if known is None or record.attempt > known.attempt:
                latest[record.round] = record
    for number, record in sorted(latest.items()):
        yield f"  round {number}: {_round(record)}"
    count = int(side.times.count[place])
    if count > 1:
        y = side.times.y[place : place + 1, :count]
        moved = int((winsorise(y) != y).sum())
        yield f"  ln t: {_list(y[0])}; {moved} of {count} pulled in (winsorised)"


def _round(row: Row) -> str:
    parts: list[str] = [row.status]
    if row.quantiles and "median" in row.quantiles:
        parts.append(f"median {row.quantiles['median']:.6g} ns")
    if row.samples_ns:
        low, high = median_interval(row.samples_ns)
        samples = counted(len(row.samples_ns), "sample")
        name = "95 % interval" if len(row.samples_ns) >= FEWEST else "range"
        parts.append(f"{name} {low:.6g} .. {high:.6g} ns of {samples}, K {row.K}")
    if row.telemetry and row.telemetry.sm_clock_mhz_mean:
        parts.append(f"SM clock {row.telemetry.sm_clock_mhz_mean:.0f} MHz")
    if row.kernels:
        parts.append(f"kernels {', '.join(row.kernels)}")
    if row.flags:
        parts.append(f"flags {' '.join(row.flags)}")
    if row.stop_reason:
        parts.append(f"stopped by {row.stop_reason}")
    return ", ".join(parts)


def _link(found: Comparison, row: RowDiff, at: int) -> Iterator[str]:
    link, known = found.links[at], found.context
    yield f"measured: {link.relation.kind}, regime {link.regime}, {link.bound or 'unknown'}-bound"
    yield f"margin: {known.margin[at]:.2%} ({link.margin}); SAME within {known.equivalence[at]:.2%}"
    moved = "not known" if link.move is None else f"{math.expm1(link.move):+.3%}"
    yield f"canary: {moved} in time, which widens the threshold by {known.shift[at]:.6f}"
    if link.tau is not None:
        yield (
            f"session noise: tau {link.tau.tau:.3%}, {link.tau.nu:.1f} degrees of freedom, "
            f"{counted(link.tau.groups, 'session or card', 'sessions or cards')}, {counted(link.tau.rows, 'row')}"
        )
    shift = cycles(found.old, found.new, row.pair)
    yield "clock cycles: " + (
        "no clock was recorded" if shift is None else f"d {shift:+.6f} ({math.expm1(shift):+.3%})"
    )


def _numbers(found: Comparison, at: int) -> Iterator[str]:
    e, limits = found.evidence, found.options.limits
    yield f"d (Hodges-Lehmann)  {e.d[at]:+.6f}  ({math.expm1(e.d[at]):+.3%})"
    yield f"s2 of its rounds    {_known(e.s2[at])}  (sd {_sd(e.s2[at])}), {e.s2_nu[at]:.2f} degrees of freedom"
    yield f"prior               s2_0 {e.prior.s2:.4g}, nu0 {e.prior.nu:.4g}, from {counted(e.prior.rows, 'row')}"
    yield f"timer floor         {found.context.floor[at]:.4g}"
    yield f"moderated s2        {_known(e.variance[at])}  (sd {_sd(e.variance[at])})"
    yield f"Var(d) / s2         {e.scale[at]:.4f}"
    yield f"2 tau2              {2 * found.context.tau2[at]:.4g}"
    yield f"SE                  {_known(e.se[at], '.6f')}, {e.nu[at]:.2f} degrees of freedom"
    yield f"95 % interval       {_percent(e.low[at])} .. {_percent(e.high[at])}"
    yield f"90 % interval       {_percent(e.equivalence_low[at])} .. {_percent(e.equivalence_high[at])}"
    yield f"threshold           {e.threshold[at]:.6f}"
    yield f"p slow, p fast      {_known(e.p_slow[at])}, {_known(e.p_fast[at])}"
    yield (
        f"after correction    {e.adjusted_slow[at]:.4g}, {e.adjusted_fast[at]:.4g} "
        f"(Benjamini-Hochberg over {counted(e.tests, 'row')}; at most q = {limits.q})"
    )
    yield f"Mann-Whitney guard  {e.guard_slow[at]:.4g}, {e.guard_fast[at]:.4g} (at most {limits.guard_p})"
    yield f"slow {bool(e.slow[at])}, fast {bool(e.fast[at])}, same {bool(e.same[at])}"


def _cross(cross: Cross, row: CrossRow) -> Iterator[str]:
    """What the efficiency gate looks at."""
    if row.note:
        yield f"efficiency          none: {row.note}"
    elif row.old_eta is not None and row.new_eta is not None:
        yield f"share of roofline   {row.old_eta:.4g} in old, {row.new_eta:.4g} in new"
        yield f"new/old of it       {_ratio(row.eta_ratio)}"
    if row.old_to_anchor is not None and row.new_to_anchor is not None:
        speeds = f"x {row.old_to_anchor:.4g} in old, x {row.new_to_anchor:.4g} in new"
        yield f"speed against       {cross.anchor}: {speeds}"
        yield f"new/old of it       {_ratio(row.anchor_ratio)}"


def _ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return "not known"
    middle, low, high = ratio
    return f"{middle:.4f}, 95 % interval " + (
        "not known" if low is None or high is None else f"{low:.4f} .. {high:.4f}"
    )


def _line(text: str) -> str:
    """The text in one line: a CI server obeys lines that begin with '::', and kernels print anything."""
    return " ".join(text.split())


def _known(value: float, form: str = ".4g") -> str:
    return f"{value:{form}}" if math.isfinite(value) else "not known"


def _sd(variance: float) -> str:
    return f"{math.sqrt(variance):.3%}" if math.isfinite(variance) else "not known"


def _percent(d: float) -> str:
    return f"{math.expm1(d):+.3%}" if math.isfinite(d) else "not known"


def _list(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return " ".join(f"{value:.5f}" for value in values)
