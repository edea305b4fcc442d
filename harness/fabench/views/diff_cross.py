"""Two cards side by side: share of each card's own roofline, speed against an anchor, and who wins each case."""

from __future__ import annotations

from fabench.diff.cross import Cross, CrossRow, Interval, Winner
from fabench.views.axes import Shape, axis_text, key_of, shape_of, sort_key
from fabench.views.diff_problems import fixed, of_case, problem, problems
from fabench.views.grid import Cell, Table
from fabench.views.notes import Notes


def cross_tables(cross: Cross) -> list[Table]:
    """Efficiency and ratios by row, and the winners by case."""
    shape = shape_of(problems([row.row for row in cross.rows])) if cross.rows else Shape((), ())
    labels, notes = (*shape.varying, "backend"), Notes()
    order = sorted(cross.rows, key=lambda r: sort_key(key_of(problem(r.row), labels)))
    body = tuple((tuple(map(axis_text, key_of(problem(r.row), labels))), _cross_cells(r, notes)) for r in order)
    against = f"; speed against {cross.anchor}" if cross.anchor else ""
    headings = ("old % roof", "new % roof", "new/old", "old x anchor", "new x anchor", "ratio of ratios")
    caption = (f"share of each card's own measured roofline (of the datasheet's){against}", *fixed(shape))
    parts = [Table(caption, labels, headings, body, tuple(notes.texts))] if body else []
    return [*parts, *_winners(cross)]


def _cross_cells(row: CrossRow, notes: Notes) -> tuple[Cell, ...]:
    marks = (notes.number(f"no efficiency: {row.note}"),) if row.note else ()
    return (
        Cell(_share(row.old_eta, row.old_sheet), marks),
        Cell(_share(row.new_eta, row.new_sheet), marks),
        Cell(_ratio(row.eta_ratio)),
        Cell("-" if row.old_to_anchor is None else f"{row.old_to_anchor:.2f}"),
        Cell("-" if row.new_to_anchor is None else f"{row.new_to_anchor:.2f}"),
        Cell(_ratio(row.anchor_ratio)),
    )


def _share(measured: float | None, sheet: float | None) -> str:
    beside = "" if sheet is None else f" ({_percent(sheet)})"
    return f"{_percent(measured)}{beside}" if measured is not None else f"-{beside}"


def _percent(share: float) -> str:
    """Whole percent, below 1 % the first digit that is not 0: what is there is not called none."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"


def _ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return "-"
    middle, low, high = ratio
    return f"{middle:.2f}" + ("" if low is None or high is None else f" ({low:.2f} .. {high:.2f})")


def _winners(cross: Cross) -> list[Table]:
    if not cross.winners:
        return []
    cases = [of_case(winner.case) for winner in cross.winners]
    shape = shape_of(cases)
    rows = sorted(zip(cases, cross.winners, strict=True), key=lambda p: sort_key(key_of(p[0], shape.varying)))
    body = tuple((tuple(map(axis_text, key_of(case, shape.varying))), _winner(winner)) for case, winner in rows)
    caption = (
        "fastest backend of each case; 'changed' where the intervals on both cards exclude a tie",
        *fixed(shape),
    )
    return [Table(caption, shape.varying, ("old", "new", ""), body, ())]


def _winner(winner: Winner) -> tuple[Cell, ...]:
    state = "changed" if winner.certain else "" if winner.old == winner.new else "not certain"
    return Cell(winner.old or "-"), Cell(winner.new or "-"), Cell(state)
