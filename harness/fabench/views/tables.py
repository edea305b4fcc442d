"""Tables as data: outcomes placed on the axes chosen for rows and columns. How a table is drawn is in `render.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fabench.errors import UsageError
from fabench.names import SKIPPED
from fabench.text import counted
from fabench.views.axes import AXES, Key, axis_text, key_of, named, shape_of, sort_key, varies
from fabench.views.grid import NOTHING, Cell, Draft, Table, finish
from fabench.views.notes import about
from fabench.views.outcomes import Outcome
from fabench.views.values import VALUES, Value

__all__ = ["Cell", "Layout", "Table", "tables"]


@dataclass(frozen=True)
class Layout:
    """What was asked of the tables; empty means chosen from the data."""

    row: tuple[str, ...] = ()
    col: tuple[str, ...] = ()
    """Axes, and 'value' for a column a value."""
    values: tuple[str, ...] = ("tflops",)
    sort: str | None = None
    """An axis of the rows, or a column's heading to sort by its numbers; with a leading '-' from large to small."""
    interval: bool = False
    """Print the half-width of the 95 % interval of the median time behind each number."""


Column = tuple[Key, Value]


@dataclass(frozen=True)
class _Plan:
    """The layout made definite for the data."""

    row: tuple[str, ...]
    col: tuple[str, ...]
    apart: tuple[str, ...]
    """Axes of which each setting gets a table of its own."""
    value_columns: bool


def tables(outcomes: Sequence[Outcome], layout: Layout) -> list[Table]:
    """The tables that show `outcomes`, one a value and one for each setting of what neither rows nor columns tell.

    Unless told otherwise columns are backends, rows are problems labelled by what varies among those of their table;
    each device gets a table, and each file if two hold the same row or are of other suites. Two outcomes never share a
    cell, and nothing is averaged over cases. Raises UsageError for a sort key that is no axis and no column, and if
    there is nothing to show.
    """
    if not outcomes:
        raise UsageError("no row is left to show; widen --where, or look into the file with 'fabench validate'")
    plan = _plan(outcomes, layout)
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key_of(outcome, plan.apart), []).append(outcome)
    chosen = [VALUES[name] for name in layout.values]
    plans = {key: replace(_plan(group, layout), apart=plan.apart) for key, group in groups.items()}
    return [
        _table(groups[key], plans[key], values, layout, among=plan.row)
        for values in ([chosen] if plan.value_columns else [[value] for value in chosen])
        for key in _in_order(outcomes, plan.apart)
    ]


def _plan(outcomes: Sequence[Outcome], layout: Layout) -> _Plan:
    by_value = "value" in layout.col
    problem = [name for name in ("regime",) if varies(name, _timed(outcomes))] + list(shape_of(outcomes).varying)
    col = tuple(name for name in layout.col if name != "value")
    if not problem and not layout.row and not layout.col:  # one problem: its backends from top to bottom
        return _Plan(("backend",), (), tuple(_apart(outcomes)), False)
    if not layout.col and "backend" not in layout.row:
        col = ("backend",)
    row = layout.row or tuple(n for n in [*problem, *_unless("backend", col)] if n not in col)
    shown = row + col
    apart = (
        _apart(outcomes) + [name for name in problem if not _follows(name, shown, outcomes)] + _unless("backend", shown)
    )
    return _Plan(row, col, tuple(name for name in apart if name not in shown), by_value)


def _timed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that have a regime: a problem of which nothing was launched has none, and is no problem of another kind."""
    return [outcome for outcome in outcomes if outcome.regime is not None]


def _apart(outcomes: Sequence[Outcome]) -> list[str]:
    """Device, and file if two hold the same row or are of other suites: never columns unless asked for."""
    device = ["device"] if varies("device", outcomes) else []
    twice = len({(o.device, o.case, o.backend) for o in outcomes}) < len(outcomes)
    suites = {outcome.suite for outcome in outcomes}
    return device + (["file"] if twice or len(suites) > 1 else [])


def _unless(name: str, taken: Sequence[str]) -> list[str]:
    return [] if name in taken else [name]


def _follows(name: str, shown: Sequence[str], outcomes: Sequence[Outcome]) -> bool:
    """True if the axes shown leave no choice of this one, as the regime may follow from N."""
    seen: dict[Key, object] = {}
    telling = _timed(outcomes) if name == "regime" else outcomes
    return all(seen.setdefault(key_of(o, shown), AXES[name](o)) == AXES[name](o) for o in telling)


def _table(
    outcomes: list[Outcome], plan: _Plan, values: Sequence[Value], layout: Layout, among: Sequence[str]
) -> Table:
    """`among` are the axes of the rows of all tables together: to sort by one that is missing here changes nothing."""
    places = _places(outcomes, plan)
    columns = [(key, value) for key in _in_order(outcomes, plan.col) for value in values]
    headings = [_heading(column, plan.value_columns) for column in columns]
    rows = _in_order(outcomes, plan.row)
    if layout.sort is not None:
        rows = _sorted_rows(rows, places, plan, dict(zip(headings, columns, strict=True)), layout.sort, among)
    lines = [
        (
            tuple(map(axis_text, row)),
            [_cell(places.get((row, key)), value, layout.interval, first=value is values[0]) for key, value in columns],
        )
        for row in rows
    ]
    names = [_name(column, plan) for column in columns]
    place = plan.row.index("backend") if "backend" in plan.row else None
    backends = None if place is None else [axis_text(row[place]) for row in rows]
    return finish(_caption(outcomes, plan, values), plan.row, headings, lines, names=names, backends=backends)


def _heading(column: Column, by_value: bool) -> str:
    key, value = column
    words = [axis_text(part) for part in key]
    return " ".join([*words, value.heading] if by_value or not words else words)


def _name(column: Column, plan: _Plan) -> str:
    """A column in words that need no heading."""
    key, value = column
    words = [named(name, part) for name, part in zip(plan.col, key, strict=True)]
    return " ".join([*words, value.heading] if plan.value_columns or not words else words)


def _places(outcomes: Sequence[Outcome], plan: _Plan) -> dict[tuple[Key, Key], Outcome]:
    places: dict[tuple[Key, Key], Outcome] = {}
    for outcome in outcomes:
        other = places.setdefault((key_of(outcome, plan.row), key_of(outcome, plan.col)), outcome)
        if other is not outcome:
            raise UsageError(
                f"two rows must not share a cell, and '{outcome.case.label()}' of '{outcome.backend}' has "
                f"'{other.case.label()}' of '{other.backend}' beside it; add an axis that tells them apart to --row"
            )
    return places


def _in_order(outcomes: Sequence[Outcome], axes: Sequence[str]) -> list[Key]:
    """The distinct places on these axes, sorted; backends and files keep the order in which they come."""
    ranks = {name: list(dict.fromkeys(AXES[name](o) for o in outcomes)) for name in axes if name in ("backend", "file")}

    def rank(key: Key) -> tuple[tuple[int, float, str], ...]:
        return sort_key(
            tuple(ranks[name].index(value) if name in ranks else value for name, value in zip(axes, key, strict=True))
        )

    return sorted({key_of(o, axes) for o in outcomes}, key=rank)


def _sorted_rows(
    rows: list[Key],
    places: dict[tuple[Key, Key], Outcome],
    plan: _Plan,
    columns: dict[str, Column],
    sort: str,
    among: Sequence[str],
) -> list[Key]:
    name, down = sort.removeprefix("-"), sort.startswith("-")
    if name in plan.row:
        index = plan.row.index(name)
        return sorted(rows, key=lambda row: sort_key((row[index],)), reverse=down)
    if name in among:
        return rows
    if name not in columns:
        known = f"an axis of the rows ({', '.join(plan.row)}) or a column ({', '.join(columns)})"
        raise UsageError(f"'--sort' must be {known}, got '{name}'")
    key, value = columns[name]
    numbers = {row: value.of(o) if (o := places.get((row, key))) else None for row in rows}
    return sorted(rows, key=lambda row: (numbers[row] is None, (numbers[row] or 0.0) * (-1 if down else 1)))


def _cell(outcome: Outcome | None, value: Value, interval: bool, first: bool) -> Draft:
    """One place. Of several values side by side the `first` carries the outcome's status and notes for all."""
    if outcome is None:
        return NOTHING
    number, notes = value.of(outcome), about(outcome) if first else []
    if number is None:
        if outcome.status == "ok":
            notes.append(_why_none(outcome, value))
        text = outcome.status if first and outcome.status != "ok" else NOTHING.text
        return Draft(text, tuple(notes), skipped=outcome.status in SKIPPED)
    words = [value.text(number)]
    if interval and value.timed and (half := VALUES["interval"].of(outcome)) is not None:
        words.append(f"±{VALUES['interval'].text(half)}")
    if outcome.status != "ok" and first:
        words.append(outcome.status)
    return Draft(" ".join(words), tuple(notes))


def _why_none(outcome: Outcome, value: Value) -> str:
    """Why an ok row has no such number."""
    if outcome.published is not None:
        return f"the source gives no {value.heading}"
    memory = outcome.worst.memory
    if value.name in ("peak", "workspace", "saved") and memory and memory.note:
        return memory.note
    if value.name == "speedup" and outcome.baseline is None:
        return "no row of a baseline for this case; choose one with --baseline"
    if value.name == "speedup" and outcome.baseline:
        return f"the baseline {outcome.baseline.backend} is {outcome.baseline.status} here"
    return f"no {value.heading} was recorded"


def _caption(outcomes: Sequence[Outcome], plan: _Plan, values: Sequence[Value]) -> tuple[str, ...]:
    """What the numbers are, then what holds for all of them."""
    lines = [
        f"{value.heading}: {value.meaning}" + (f"; {value.better} is better" if value.better else "")
        for value in values
    ]
    measured = [o for o in outcomes if o.ours] or list(outcomes)
    common = [measured[0].device] if not varies("device", measured) else []
    regimes = {outcome.regime for outcome in _timed(measured)}
    common += [str(*regimes)] if len(regimes) == 1 else []
    common += shape_of(outcomes).fixed
    rounds = {len(o.rows) for o in measured}
    if rounds != {1}:
        common.append(f"{min(rounds)} to {max(rounds)} rounds" if len(rounds) > 1 else counted(max(rounds), "round"))
    common += [f"{name} {AXES[name](measured[0])}" for name in ("file", "backend") if name in plan.apart]
    return (*lines, ", ".join(text for text in common if text != "None"))
