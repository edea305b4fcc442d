"""A worker's side of the pipes: commands in, events out, its life tied to the supervisor's. No torch here.

A worker module brings a session class: made by the `start` command, then one method a command.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from fabench.family import end_with
from fabench.protocol import Board, Lines, encode

Emit = Callable[[dict[str, Any]], None]
NewSession = Callable[[dict[str, Any], Board, Emit], Any]


def run(argv: list[str], new_session: NewSession) -> None:
    """Serve on the pipes that `argv` names: COMMAND_FD EVENT_FD BOARD_FD PARENT_PID.

    Returns when the supervisor closes the command pipe. An error outside any backend is reported, and ends the process.
    """
    commands, events, board_fd, parent = map(int, argv)
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (commands, events, board_fd):
        os.set_inheritable(fd, False)

    def emit(message: dict[str, Any]) -> None:
        data = encode(message)
        while data:
            data = data[os.write(events, data) :]

    def leave() -> None:
        """In a process that a backend forks: it has no part in what this one says, even if its call returns here."""
        board.detach()
        for fd in (commands, events):
            with contextlib.suppress(OSError):
                os.close(fd)

    board = Board(board_fd)
    os.register_at_fork(after_in_child=leave)
    try:
        serve(commands, emit, board, new_session)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):  # a backend may have closed the pipe, or stderr
            report(error, emit)
        os._exit(1)  # whatever threads and exit hooks a backend left behind
    gc.freeze()  # or Python would look through all of torch once more for what can go, a third of a second


def serve(commands: int, emit: Emit, board: Board, new_session: NewSession) -> None:
    """Answer commands until the pipe closes."""
    lines, session = Lines(), None
    while data := os.read(commands, 1 << 20):
        for command in lines.feed(data):
            if command["cmd"] == "start":
                session = new_session(command, board, emit)
                emit({"ev": "ready"})
            elif session is not None:
                getattr(session, command["cmd"])(command)


def report(error: BaseException, emit: Emit) -> None:
    """Say what ended this process, in the log and to the supervisor."""
    import traceback

    from fabench.outcome import is_out_of_memory, sentence

    status = "oom" if is_out_of_memory(error) else "error"
    trace = "".join(traceback.format_exception(error))
    emit({"ev": "failed", "status": status, "message": sentence(error), "traceback": trace[-4000:]})
    sys.stderr.write(trace)
    sys.stderr.flush()
