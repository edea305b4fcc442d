"""What the supervisor deals with: workers, and where the outcomes go. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fabench.case import Case
from fabench.plan import PlannedRow
from fabench.protocol import Board

Spans = Sequence[tuple[float, float]]
"""Start and end of each sampling window, on the machine's monotonic clock."""


class Worker(Protocol):
    """What the supervisor needs of a worker, in a process of its own or in this one."""

    board: Board

    def send(self, message: dict[str, Any]) -> None:
        """Give it a command."""

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """What it has to say, or None within `timeout` seconds."""

    def kill(self) -> None:
        """End it at once."""

    def close(self) -> None:
        """End it in order."""


class Sink(Protocol):
    """Where outcomes go: the result file and the progress display."""

    def row(self, planned: PlannedRow, round_: int, order: int, fields: dict[str, Any], spans: Spans) -> None:
        """One row is known; `spans` is when it was timed."""

    def canary(self, reading: dict[str, Any], where: str, round_: int) -> None:
        """The canaries were timed."""

    def working(self, planned: PlannedRow | None, case: Case) -> None:
        """What is at work now, for the display."""


@dataclass(frozen=True)
class Limits:
    """How long a row may take, in seconds: its own calls, and making it ready."""

    row_s: float = 120.0
    prepare_s: float = 300.0
