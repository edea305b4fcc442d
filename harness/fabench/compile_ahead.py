"""Compiles what a run will need before anything is timed, in several processes at once.

Some compilers keep on disk what they have made, as Triton and Inductor do; the run finds it there when the row's turn
comes, and its `compile_s` is short. What goes wrong here is of no consequence: the row's own turn will tell. No torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fabench.case import Case
from fabench.plan import PlannedRow
from fabench.supervised import Worker
from fabench.text import counted
from fabench.worker_process import WorkerDiedError

POLL_S = 0.02
PROCESS_BYTES = 4 << 30
"""Device memory of a process: a context, the libraries' workspaces and the tensors of a case."""

Work = tuple[Case, str]
Start = Callable[[], Worker]


def work_of(rows: Iterable[PlannedRow], keeps: Callable[[str], bool]) -> list[Work]:
    """The (case, backend) pairs to compile, each once, in the order of the rows."""
    return list(dict.fromkeys((row.case, row.backend) for row in rows if row.status is None and keeps(row.backend)))


def room(free_bytes: int) -> int:
    """How many processes the device has memory for, beside the one that measures or judges."""
    return max(0, free_bytes // PROCESS_BYTES - 1)


def compile_alone() -> None:
    """Keep Inductor from starting processes of its own: those that compile ahead are its threads."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def affordable(asked: int, free_bytes: int, device_type: str) -> int:
    """How many of the processes asked for the device has memory for, and at least one."""
    return asked if device_type == "cpu" else max(1, min(asked, room(free_bytes)))


@dataclass
class _Process:
    worker: Worker
    left: int
    """Pairs that it has not answered for."""
    heard: float


def compile_ahead(
    work: Sequence[Work],
    start: Start,
    start_command: dict[str, Any],
    processes: int,
    limit_s: float,
    at_work: Callable[[str, Case], None],
) -> str:
    """Compile `work` with as many processes, dealt out like cards; returns a sentence about it.

    A process that says nothing for `limit_s` seconds is given up with what it had left. Ctrl-C ends them all.
    """
    began, running, given_up = time.monotonic(), list[_Process](), 0
    try:
        for i in range(min(processes, len(work))):
            share = work[i::processes]
            worker = start()
            running.append(_Process(worker, len(share), time.monotonic()))
            pairs = [{"key": case.key, "backend": name} for case, name in share]
            try:
                worker.send({"cmd": "start", **start_command})
                worker.send({"cmd": "ahead", "work": pairs})
            except WorkerDiedError:
                given_up += _end(running.pop())
        while running:
            for process in list(running):
                if not _alive(process, limit_s, at_work):
                    running.remove(process)
                    given_up += _end(process)
            time.sleep(POLL_S)
    finally:
        for process in running:
            _end(process)
    done, seconds = len(work) - given_up, time.monotonic() - began
    by = counted(min(processes, len(work)), "process", "processes")
    return f"compiled ahead: {done} of {counted(len(work), 'case')} in {seconds:.0f} s by {by}"


def _alive(process: _Process, limit_s: float, at_work: Callable[[str, Case], None]) -> bool:
    """Take in what a process has to say; False once it has nothing left to do, is gone, or has been silent too long."""
    try:
        while (event := process.worker.next_event(0.0)) is not None:
            process.heard = time.monotonic()
            if event["ev"] == "compiled":
                process.left -= 1
                at_work(event["backend"], Case.from_key(event["key"]))
            elif event["ev"] == "failed":
                return False
    except WorkerDiedError:
        return False
    return process.left > 0 and time.monotonic() - process.heard < limit_s


def _end(process: _Process) -> int:
    """End it; how many pairs it had left."""
    process.worker.kill()
    process.worker.close()
    return process.left
