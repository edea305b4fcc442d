"""A worker without a process: the same commands and events in this one, for debuggers and profilers."""

from __future__ import annotations

from collections import deque
from typing import Any

from fabench.protocol import Board


class InProcessWorker:
    """Runs each command as it is sent. Nothing guards against a backend that hangs or dies: that is the point."""

    def __init__(self) -> None:
        self.board = Board.create()
        self._events: deque[dict[str, Any]] = deque()
        self._session: Any = None

    def send(self, message: dict[str, Any]) -> None:
        """Carry out a command now; its events wait to be asked for."""
        from fabench.worker import Session

        if message["cmd"] == "start":
            self._session = Session(message, self.board, self._events.append)
            self._events.append({"ev": "ready"})
        else:
            getattr(self._session, message["cmd"])(message)

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """The next event of the commands carried out so far."""
        return self._events.popleft() if self._events else None

    def kill(self) -> None:
        """Nothing to end."""

    def close(self) -> None:
        """Release the board."""
        self.board.close()
