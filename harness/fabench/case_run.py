"""One case of one round as the supervisor sees it: which rows are owed, and whom a dead worker leaves in doubt."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabench.case import Case
from fabench.plan import PlannedRow
from fabench.protocol import FIRST_ROW


@dataclass
class CaseRun:
    """One case of one round: which rows are still owed, and what each has used of its time."""

    case: Case
    order: int
    rows: dict[str, PlannedRow]
    jobs: list[PlannedRow] = field(default_factory=list)
    used: dict[tuple[str, bool], float] = field(default_factory=dict)
    alone: bool = False
    """A worker died while nobody was at work: rows go one by one, so that the next death has an owner."""
    doubtful: set[str] = field(default_factory=set)
    """Rows that get a worker of their own, last: one that others had used died under them, or they spoil theirs."""
    failed_starts: int = 0

    @property
    def only_doubtful(self) -> bool:
        """True if no other row is owed."""
        return self.rows.keys() <= self.doubtful

    def next_jobs(self) -> list[PlannedRow]:
        """What the next worker is given of the rows still owed: all without doubt, or the first alone."""
        owed = [row for row in self.rows.values() if self.only_doubtful or row.row_id not in self.doubtful]
        self.jobs = owed[: 1 if self.alone or self.only_doubtful else None]
        return self.jobs

    def set_apart(self, row_id: str) -> None:
        """Give a row a worker of its own, and its time anew."""
        self.doubtful.add(row_id)
        self.used = {key: used for key, used in self.used.items() if key[0] != row_id}

    def at_work(self, board_row: int) -> PlannedRow | None:
        """The row whose calls were running, if it is still owed."""
        index = board_row - FIRST_ROW
        return self.jobs[index] if 0 <= index < len(self.jobs) and self.jobs[index].row_id in self.rows else None
