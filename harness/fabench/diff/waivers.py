"""Waivers: known bad rows that may pass the gate, up to a bound and until a day, for a written reason.

[[waiver]]
row = "triton-flash *N=512*"     # glob over 'backend case', or a row_id; and / or:
where = "backend=naive,N>=8192"  # the condition grammar
verdicts = ["regressed"]         # what it excuses; this is the default
bound = "8%"                     # needed for regressed: a larger slowdown still gates
expires = 2026-12-31
reason = "new tile scheduler, tracked in #123"
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from datetime import date, datetime
from fnmatch import fnmatchcase
from typing import Any

from fabench.case import Case
from fabench.diff.thresholds import GATEABLE, fraction, percent
from fabench.diff.verdicts import GATES, Verdict
from fabench.errors import LocatedError, UsageError, WhereError
from fabench.input_files import read_small
from fabench.text import did_you_mean
from fabench.where import Condition

KEYS = ("row", "where", "verdicts", "bound", "expires", "reason")


@dataclass(frozen=True)
class Waiver:
    """One [[waiver]]."""

    row: str | None
    where: Condition | None
    verdicts: tuple[str, ...]
    bound: float | None
    """Largest slowdown, or across cards fall in efficiency, that it excuses: a fraction of 1."""
    expires: date
    reason: str
    place: str
    """'waivers.toml [2]', for messages."""

    def expired(self, today: date) -> bool:
        """True from the day after `expires` on."""
        return today > self.expires

    def covers(self, row_id: str, case: Case, backend: str, verdict: Verdict, slowdown: float | None) -> bool:
        """True if this row's bad verdict is one it excuses. `slowdown` is new/old - 1, None where there is none."""
        if GATES.get(verdict) not in self.verdicts or not self.names(row_id, case, backend):
            return False
        if self.bound is None or slowdown is None:
            return GATES.get(verdict) != "regressed"
        return slowdown <= self.bound

    def names(self, row_id: str, case: Case, backend: str) -> bool:
        """True if it is about this row, whatever its verdict."""
        if self.where is not None and not self.where.matches(case, backend):
            return False
        return self.row is None or self.row == row_id or fnmatchcase(f"{backend} {case.label()}", self.row)

    def text(self) -> str:
        """How a report names it."""
        about = " and ".join(f"'{part}'" for part in (self.row, self.where) if part is not None)
        bound = f" up to {percent(self.bound)}" if self.bound is not None else ""
        return f"{about}: {', '.join(self.verdicts)}{bound} until {self.expires}: {self.reason}"


def load(path: str | os.PathLike[str]) -> tuple[Waiver, ...]:
    """The waivers of a TOML file. Raises LocatedError (exit 2) for anything that is not as the module says."""
    name = os.fspath(path)
    try:
        data = tomllib.loads(read_small(path).decode())
    except OSError as error:
        raise LocatedError(f"'{name}' cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LocatedError(f"not TOML: {error}", name) from None
    tables = data.get("waiver", [])
    if set(data) - {"waiver"} or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise LocatedError("a waiver file must hold [[waiver]] tables and nothing else", name)
    return tuple(_waiver(table, f"{name} [{number}]") for number, table in enumerate(tables, 1))


def _waiver(table: dict[str, Any], place: str) -> Waiver:
    def wrong(key: str, expected: str) -> LocatedError:
        return LocatedError(f"'{key}' must be {expected}, got {table.get(key)!r}", place)

    if unknown := [key for key in table if key not in KEYS]:
        raise LocatedError(f"unknown key '{unknown[0]}'{did_you_mean(unknown[0], KEYS)}", place)
    row, where, reason = table.get("row"), table.get("where"), table.get("reason")
    if row is None and where is None:
        raise LocatedError("a waiver must say what it is about: 'row', a glob, or 'where', a condition", place)
    for key in ("row", "where", "reason"):
        if key in table and not (isinstance(table[key], str) and table[key].strip()):
            raise wrong(key, "a text")
    if reason is None:
        raise LocatedError("'reason' is missing: a waiver must say why", place)
    expires = table.get("expires")
    if isinstance(expires, datetime) or not isinstance(expires, date):
        raise wrong("expires", "a date such as 2026-12-31, without quotes")
    verdicts = table.get("verdicts", ["regressed"])
    if not isinstance(verdicts, list) or not verdicts or not set(map(str, verdicts)) <= set(GATEABLE):
        raise wrong("verdicts", f"a list of {', '.join(GATEABLE)}")
    bound = table.get("bound")
    if bound is None and "regressed" in verdicts:
        raise LocatedError("'bound' is missing: say how much slower the row may be, such as '8%'", place)
    try:
        condition = Condition.parse(where) if where is not None else None
        share = None if bound is None else fraction(str(bound), "bound")
    except WhereError as error:
        raise LocatedError(f"'where': {error}", place) from None
    except UsageError as error:
        raise LocatedError(str(error), place) from None
    # in one line: a report prints it, and a CI server obeys lines that begin with "::"
    return Waiver(row, condition, tuple(verdicts), share, expires, " ".join(reason.split()), place)
