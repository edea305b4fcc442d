"""What a run was narrowed to, as its header records it: a row it left out on purpose is not missing."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from fabench.diff.pairs import Pair
from fabench.diff.side import Side
from fabench.errors import WhereError
from fabench.where import Condition


def excludes(new: Side, old: Side) -> Callable[[Pair], bool]:
    """The rows that the filter of `new` explains the absence of, given that of `old`.

    A shard holds some of the cases, each with all its backends, and which cases cannot be told from outside: a case
    of which it has no row is taken to be in another shard, unless old is the same shard. `fabench merge` of all shards
    makes absences count again.
    """
    told, told_old = new.file.header.filter, old.file.header.filter
    where, patterns, rows, shard = (told.get(name) for name in ("where", "backend", "rows", "shard"))
    try:
        condition = Condition.parse(where) if isinstance(where, str) else None
    except WhereError:
        condition = None  # written by a newer fabench: it then explains nothing
    cases = {row.case for row in new.rows} if shard is not None and shard != told_old.get("shard") else None

    def excluded(pair: Pair) -> bool:
        return (
            (condition is not None and not condition.matches(pair.case, pair.backend))
            or (isinstance(patterns, list) and not any(fnmatchcase(pair.backend, str(p)) for p in patterns))
            or (isinstance(rows, list) and pair.row_id not in rows)
            or (cases is not None and pair.case not in cases)
        )

    return excluded
