"""Rows of two files put side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fabench.case import Case
from fabench.diff.side import Meaning, Side
from fabench.errors import RecordError, UsageError
from fabench.where import Condition


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

    Rows are one if they have one row_id; where a file holds published figures, if they solve one problem by one
    backend, since layout, inputs and seed are not a paper's to choose. Raises UsageError if none is in both,
    RecordError if one row_id means different things in the two files.
    """
    published = any(row.published for side in (old, new) for row in side.rows)
    places = [
        {_problem(row) if published else row.row_id: index for index, row in enumerate(side.rows)}
        for side in (old, new)
    ]
    pairs = []
    for key in dict.fromkeys([*places[0], *places[1]]):
        a, b = (place.get(key) for place in places)
        ours = old.rows[a] if a is not None else new.rows[places[1][key]]
        if b is not None and not published and (new.rows[b].case, new.rows[b].backend) != (ours.case, ours.backend):
            raise RecordError(
                f"row_id '{key}' must mean one case and backend, and means another one in '{old.path}'", new.path
            )
        if where is None or where.matches(ours.case, ours.backend):
            pairs.append(Pair(ours.row_id, ours.case, ours.backend, a, b))
    if not any(pair.old is not None and pair.new is not None for pair in pairs):
        raise UsageError(_nothing_in_common(old, new, where))
    return pairs


def _problem(row: Meaning) -> tuple[Case, str]:
    return replace(row.case, layout="bhsd", inputs="normal", seed=0), row.backend


def both_ok(old: Side, new: Side, pair: Pair) -> bool:
    """True if the pair's times may be looked at."""
    return pair.old is not None and pair.new is not None and old.status[pair.old] == new.status[pair.new] == "ok"


def _nothing_in_common(old: Side, new: Side, where: Condition | None) -> str:
    suites = [side.file.header.suite.get("name") for side in (old, new)]
    hint = f"; their suites are '{suites[0]}' and '{suites[1]}'" if suites[0] != suites[1] else ""
    matching = f" that match '{where}'" if where else ""
    return (
        f"'{old.path}' and '{new.path}' must have rows in common{matching}, got {len(old.rows)} and {len(new.rows)} "
        f"rows and none in both{hint}; a row is a case and the name of a backend, as `fabench show` lists them"
    )
