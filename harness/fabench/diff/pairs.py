"""Rows of two files put side by side."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fabench.case import Case
from fabench.diff.side import Side
from fabench.errors import RecordError, UsageError
from fabench.text import counted
from fabench.where import Condition

ANY = ("layout", "inputs", "seed")
"""Fields of a case that are not a paper's to choose: they keep no figure from a row."""
MOST = 8
"""The most values of one field that a message lists."""


@dataclass(frozen=True)
class Pair:
    """One row of either file, and its place in both."""

    row_id: str
    case: Case
    backend: str
    old: int | None
    new: int | None

    @property
    def places(self) -> tuple[int, int]:
        """The rows in old and new of a pair that is in both."""
        assert self.old is not None
        assert self.new is not None
        return self.old, self.new


def pair_up(old: Side, new: Side, where: Condition | None) -> list[Pair]:
    """The rows of both files that `where` matches, old's order first.

    Rows are one if they have one row_id. Raises UsageError if none is in both, RecordError if one row_id means
    different things in the two files. Where one file holds published figures, see `beside`.
    """
    if _published(old) or _published(new):
        pairs = beside(old, new, where)
    else:
        pairs = [_pair(old, new, row_id) for row_id in dict.fromkeys([*old.index, *new.index])]
        if (common := sum(map(_in_both, pairs))) and where is not None:
            pairs = [pair for pair in pairs if where.matches(pair.case, pair.backend)]
            if not any(map(_in_both, pairs)):
                raise UsageError(f"--where '{where}' must match a row of both files, got none of {common} in both")
    if not any(map(_in_both, pairs)):
        raise UsageError(_nothing_in_common(old, new, where))
    return pairs


def _in_both(pair: Pair) -> bool:
    return pair.old is not None and pair.new is not None


def _pair(old: Side, new: Side, row_id: str) -> Pair:
    a, b = old.index.get(row_id), new.index.get(row_id)
    ours = old.rows[a] if a is not None else new.rows[new.index[row_id]]
    if b is not None and (new.rows[b].case, new.rows[b].backend) != (ours.case, ours.backend):
        raise RecordError(
            f"row_id '{row_id}' must mean one case and backend, and means another one in '{old.path}'", new.path
        )
    return Pair(row_id, ours.case, ours.backend, a, b)


def beside(old: Side, new: Side, where: Condition | None) -> list[Pair]:
    """Every row of one file beside every row of the other that solves its problem.

    A paper's backend has a name of its own, and layout, inputs and seed are not a paper's to choose, so neither tells
    rows apart here. A pair is called 'new / old' by its two backends, and by new's row_id and case.
    """
    figures: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(old.rows):
        figures.setdefault(_problem(row.case), []).append(index)
    return [
        Pair(row.row_id, row.case, f"{row.backend} / {old.rows[a].backend}", a, b)
        for b, row in enumerate(new.rows)
        for a in figures.get(_problem(row.case), [])
        if where is None or where.matches(row.case, row.backend)
    ]


def _published(side: Side) -> bool:
    return any(row.published for row in side.rows)


def _problem(case: Case) -> tuple[object, ...]:
    """What is solved; a tuple, because a published figure may be of a dtype that no Case can be built with."""
    names = (field.name for field in fields(case) if field.name not in ANY)
    return tuple(getattr(case, name) for name in names)


def both_ok(old: Side, new: Side, pair: Pair) -> bool:
    """True if the pair's times may be looked at."""
    return pair.old is not None and pair.new is not None and old.status[pair.old] == new.status[pair.new] == "ok"


def _nothing_in_common(old: Side, new: Side, where: Condition | None) -> str:
    suites = [side.file.header.suite.get("name") for side in (old, new)]
    hint = f"; their suites are '{suites[0]}' and '{suites[1]}'" if suites[0] != suites[1] else ""
    matching = f" that match '{where}'" if where else ""
    row = "a row is a case and the name of a backend, as `fabench show` lists them"
    if _published(old) or _published(new):
        apart = _apart(old, new)
        row = "a figure stands beside the rows of its problem" + (f", and no {apart} is in both" if apart else "")
    return (
        f"'{old.path}' and '{new.path}' must have rows in common{matching}, got {len(old.rows)} and "
        f"{counted(len(new.rows), 'row')} and none in both{hint}; {row}"
    )


def _apart(old: Side, new: Side) -> str:
    """What keeps all problems of two files apart: 'dtype (fp16; bf16, fp32)'; empty if it is no one field."""
    for field in fields(Case):
        if field.name in ANY:
            continue
        values = [{str(getattr(row.case, field.name)) for row in side.rows} for side in (old, new)]
        if all(values) and not values[0] & values[1]:
            return f"{field.name} ({'; '.join(', '.join(sorted(one, key=_by_size)[:MOST]) for one in values)})"
    return ""


def _by_size(text: str) -> tuple[int, str]:
    """Numbers, written out, by value."""
    return len(text), text
