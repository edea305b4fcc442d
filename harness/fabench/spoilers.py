"""Backends that take from their process what cannot be given back, such as a hard limit. No torch here.

What they do to themselves is theirs. So they get a worker that no other backend uses, from the first time that it is
seen on; a row of another that shared the worker and is not finished is run again in a fresh one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fabench.plan import PlannedRow


class Spoilers:
    """Who they are, and which of them the present worker has served."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._spoilt_by: str | None = None

    def fresh_worker(self) -> None:
        """A new worker is as it should be."""
        self._spoilt_by = None

    def seen(self, backend: str, served: set[str]) -> bool:
        """Note that `backend` has spoilt the worker; True if that has served others, and must be replaced."""
        self._known.add(backend)
        self._spoilt_by = backend
        return served > {backend}

    def apart(self, rows: Mapping[str, PlannedRow]) -> set[str]:
        """The ids of those rows that must not share a worker with the others; none if all are of one backend."""
        if len({row.backend for row in rows.values()}) == 1:
            return set()
        return {row_id for row_id, row in rows.items() if row.backend in self._known}

    def unfit(self, rows: Iterable[PlannedRow]) -> bool:
        """True if the present worker was spoilt by another backend than that of all the rows."""
        return self._spoilt_by is not None and any(row.backend != self._spoilt_by for row in rows)
