"""`fabench diff` as text: the rows worst first, geomeans, notes, and one line that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fabench.diff.compare import Comparison, RowDiff
from fabench.diff.geomean import Geomean
from fabench.diff.report import Report, summary
from fabench.diff.side import Side
from fabench.diff.verdicts import MEANING, VERDICTS, Verdict
from fabench.text import counted
from fabench.views.axes import axis_text, key_of, shape_of, sort_key
from fabench.views.diff_cross import cross_tables
from fabench.views.diff_problems import fixed, problem, problems
from fabench.views.grid import Cell, Table
from fabench.views.notes import FLAGS, Notes
from fabench.views.render import escaped, listed, render, table_width, wrapped
from fabench.views.values import significant

QUIET: tuple[Verdict, ...] = ("SAME", "SHOWN", "PUBLISHED", "SKIPPED", "STILL_FAILING")
"""Verdicts of which only the first rows are printed unless all are asked for."""
QUIET_ROWS = 20
REASONS = 8
"""The most reasons for which rows were skipped in both files that are printed unless all are asked for."""
LOUD_ROWS = 200
"""The most rows of other verdicts that are printed unless all are asked for."""

HEADINGS = ("old", "new", "new/old", "95 % interval", "verdict")
NARROW = (4, 2, 3, 0, 1)
"""The order of the headings where not all fit beside the labels: what is bad, and how much, comes first."""


def text(report: Report, style: str = "simple", *, all_rows: bool = False, width: int | None = None) -> str:
    """Everything a reader needs, as plain text ('simple') or Markdown ('github')."""
    lines = [summary(report)] if style == "github" else []
    parts = [_header(report), *_tables(report, all_rows), *_footer(report)]
    drawn = [_fitting(part, style, width) if isinstance(part, Table) else listed(part, style, width) for part in parts]
    last = [] if style == "github" else [wrapped(summary(report), width)]
    return "\n\n".join([*(f"**{escaped(line)}**" for line in lines), *filter(None, drawn), *last])


def _fitting(table: Table, style: str, width: int | None) -> str:
    """The table drawn; where rows would be broken, the verdict stays beside the name of its row."""
    drawn = render(table, style, width)
    if width is None or table.headings != HEADINGS or table_width(table) <= width:
        return drawn
    rows = tuple((labels, tuple(cells[index] for index in NARROW)) for labels, cells in table.rows)
    return render(replace(table, headings=tuple(HEADINGS[index] for index in NARROW), rows=rows), style, width)


def pivot(
    report: Report, row: Sequence[str], col: Sequence[str], style: str = "simple", width: int | None = None
) -> str:
    """new/old with its verdict on the axes asked for; a SAME row is '~'. Rows that share a cell get one line each."""
    shape = shape_of(problems(report.found.rows))
    row = tuple(row) or tuple(name for name in (*shape.varying, "backend") if name not in col)
    col = tuple(col) or tuple(name for name in ("backend",) if name not in row)
    left = [name for name in (*shape.varying, "backend") if name not in (*row, *col)]
    places: dict[tuple[tuple[object, ...], tuple[object, ...]], RowDiff] = {}
    for item in report.found.rows:
        seen = problem(item)
        places[key_of(seen, [*row, *left]), key_of(seen, col)] = item
    columns = sorted({key for _, key in places}, key=sort_key)
    keys = sorted({key for key, _ in places}, key=sort_key)
    notes = Notes()
    body = tuple(
        (
            tuple(map(axis_text, key)),
            tuple(
                _pivot_cell(report.found, places[key, column], notes) if (key, column) in places else Cell("-")
                for column in columns
            ),
        )
        for key in keys
    )
    headings = tuple(" ".join(map(axis_text, column)) or "new/old" for column in columns)
    table = Table(("new/old of time", *fixed(shape)), (*row, *left), headings, body, tuple(notes.texts))
    return "\n\n".join([render(table, style, width), wrapped(summary(report), width)])


def _pivot_cell(found: Comparison, row: RowDiff, notes: Notes) -> Cell:
    ratio = found.ratio(row)
    why = [" ".join(row.reason.split())] if row.reason else []
    if row.verdict == "SAME":
        return Cell("~")
    verdict = _verdict(row)
    marks = tuple(sorted(map(notes.number, [*why, *_waived(row)])))
    return Cell(f"{ratio[0]:.3f} {verdict}" if ratio else verdict, marks)


def _header(report: Report) -> list[str]:
    return [
        " ".join(_file(name, side).split()) for name, side in (("old", report.found.old), ("new", report.found.new))
    ]


def _file(name: str, side: Side) -> str:
    envs = list(side.file.envs.values())
    models = " and ".join(dict.fromkeys(env.identity.model for env in envs)) or "no environment"
    header = side.file.header
    sha = f" {header.harness.git_sha[:9]}" if header.harness.git_sha else ""
    dirty = "+" if header.harness.dirty else ""
    return (
        f"{name}: {side.path}: {models}, {counted(len(side.rows), 'row')} x {counted(header.rounds, 'round')}, "
        f"{header.started}, fabench {header.harness.version}{sha}{dirty}"
    )


def _tables(report: Report, all_rows: bool) -> list[Table | list[str]]:
    ordered, found = report.ordered(), report.found
    most_quiet = QUIET_ROWS if report.cross is None else LOUD_ROWS
    loud = [row for row in ordered if row.verdict not in QUIET]
    quiet = [row for row in ordered if row.verdict in QUIET]
    skipped = [row for row in quiet if row.verdict == "SKIPPED"] if not all_rows else []
    if len(skipped) < len(ordered):
        quiet = [row for row in quiet if all_rows or row.verdict != "SKIPPED"]
    else:
        skipped = []  # nothing else is left to show
    hidden = [] if all_rows else loud[LOUD_ROWS:] + quiet[most_quiet:]
    shown = ordered if all_rows else loud[:LOUD_ROWS] + quiet[:most_quiet]
    parts: list[Table | list[str]] = [replace(_rows(found, shown), asides=_left_out(skipped))]
    if hidden:
        kinds = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in hidden)]
        which = f"({', '.join(kinds)})"
        one, many = f"more row {which} is not shown", f"more rows {which} are not shown"
        parts.append([f"{counted(len(hidden), one, many)}: --all shows {'it' if len(hidden) == 1 else 'them'}"])
    if report.cross is not None:
        parts += cross_tables(report.cross)
    elif report.geomeans:
        parts.append(_geomeans(report.geomeans))
    return parts


def _left_out(rows: Sequence[RowDiff]) -> tuple[str, ...]:
    """A line for each reason for which rows are skipped in both files, with the backends it concerns."""
    groups: dict[str, list[RowDiff]] = {}
    for row in rows:
        groups.setdefault(" ".join(row.reason.split()), []).append(row)
    by_size = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [
        f"SKIPPED: {', '.join(dict.fromkeys(row.pair.backend for row in group))}, {counted(len(group), 'row')}"
        + (f": {reason}" if reason else "")
        for reason, group in by_size[:REASONS]
    ]
    if rest := by_size[REASONS:]:
        left = counted(sum(len(group) for _, group in rest), "row")
        lines.append(f"SKIPPED: {left} for {counted(len(rest), 'more reason')}: see --all")
    return tuple(lines)


def _rows(found: Comparison, rows: Sequence[RowDiff]) -> Table:
    shape = shape_of(problems(found.rows))
    labels = (*shape.varying, "backend")
    notes = Notes()
    body = tuple((tuple(map(axis_text, key_of(problem(row), labels))), _cells(found, row, notes)) for row in rows)
    return Table(fixed(shape), labels, HEADINGS, body, tuple(notes.texts))


def _cells(found: Comparison, row: RowDiff, notes: Notes) -> tuple[Cell, ...]:
    ratio, pair = found.ratio(row), row.pair
    old, new = (
        None if place is None else side.median_of(place)
        for side, place in ((found.old, pair.old), (found.new, pair.new))
    )
    marks = tuple(sorted(notes.number(text) for text in _doubts(found, row)))
    interval = "-"
    if ratio and ratio[1] is not None and ratio[2] is not None:
        interval = f"{ratio[1]:.3f} .. {ratio[2]:.3f}"
    return (
        Cell(_time(old, row.old_status)),
        Cell(_time(new, row.new_status)),
        Cell(f"{ratio[0]:.3f}" if ratio else "-"),
        Cell(interval),
        Cell(_verdict(row), marks),
    )


def _verdict(row: RowDiff) -> str:
    return row.verdict + (" (waived)" if row.waiver else "")


def _waived(row: RowDiff) -> list[str]:
    return [f"waived: {row.waiver.reason} (until {row.waiver.expires})"] if row.waiver else []


def _doubts(found: Comparison, row: RowDiff) -> list[str]:
    """The footnotes of a row: why, what excuses it, and the flags of times that are more than unchanged."""
    texts = [" ".join(row.reason.split())] if row.reason else []
    texts += _waived(row)
    if row.at is not None and row.verdict not in QUIET:
        a, b = row.pair.places
        old, new = found.old.flags[a], found.new.flags[b]
        for flag in FLAGS:
            if flag in old or flag in new:
                where = "" if flag in old and flag in new else " (old only)" if flag in old else " (new only)"
                texts.append(f"{flag}{where}: {FLAGS[flag]}")
    return texts


def _time(ns: float | None, status: str | None) -> str:
    """1.02 ms; the status of what has no time; '-' for what is absent."""
    if ns is None:
        return status or "-"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale:
            return f"{significant(ns / scale, 4)} {unit}"
    return f"{significant(ns, 4)} ns"


def _geomeans(geomeans: Sequence[Geomean]) -> Table:
    body = []
    for mean in geomeans:
        interval = f"{mean.low:.4f} .. {mean.high:.4f}" if mean.low is not None and mean.high is not None else "-"
        cells = (Cell(f"{mean.ratio:.4f}"), Cell(interval), Cell(str(mean.common)), Cell(f"{mean.old} / {mean.new}"))
        body.append(((mean.backend, mean.direction), cells))
    caption = ("geometric mean of new/old over rows ok in both files; interval over rounds",)
    return Table(
        caption, ("backend", "direction"), ("new/old", "95 % interval", "rows", "ok in old / new"), tuple(body), ()
    )


def _footer(report: Report) -> list[list[str]]:
    counts = report.found.counts()
    seen = [v for v in counts if v not in ("SAME", "REGRESSED", "IMPROVED")]
    limits = ", ".join(f"{name} {value:g}" for name, value in report.found.options.limits.as_dict().items())
    return [
        [
            *report.notes,
            *(f"{verdict}: {MEANING[verdict]}" for verdict in MEANING if verdict in seen),
            f"thresholds: {limits}",
        ]
    ]
