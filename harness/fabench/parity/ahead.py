"""Compiles a kernel for the trials to come, in processes of their own, where a battery mostly waits for a compiler.

A compiler that keeps on disk what it has made, as Triton and Inductor do, finds it there when the trial's turn comes.
Nothing else of these processes matters to anybody, not even their death. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.compile_ahead import room
from fabench.parity.trial import Result, Trial
from fabench.worker_process import WorkerDiedError, WorkerProcess

LEAST_COMPILE_S, LEAST_SHARE = 4.0, 0.5
"""Seen so far, in all and of all time, before compiling ahead is worth its start."""
LEAST_TRIALS = 8
"""Still to come: fewer are over before the processes have imported torch."""
MOST_PROCESSES, SPARED_CORES = 12, 2
"""What the worker and its supervisor need is spared."""


def affordable(free_bytes: int) -> int:
    """How many processes there may be where the device has so much memory free."""
    cores = len(os.sched_getaffinity(0)) - SPARED_CORES
    return max(0, min(MOST_PROCESSES, cores, room(free_bytes)))


@dataclass
class Ahead:
    """The processes, once it has been seen that they are worth it."""

    start: Callable[[], WorkerProcess]
    """Starts a worker that has been told its kernel."""
    most: int
    workers: list[WorkerProcess] = field(default_factory=list)
    compile_s: float = 0.0
    seconds: float = 0.0

    def look(self, results: Sequence[Result], to_come: Sequence[Trial]) -> None:
        """Take in the results of a trial and, once they say so, begin with those to come."""
        self.compile_s += sum(result.compile_s for result in results)
        self.seconds += sum(result.seconds for result in results)
        slow = self.compile_s >= max(LEAST_COMPILE_S, LEAST_SHARE * self.seconds)
        if self.workers or not slow or len(to_come) < LEAST_TRIALS:
            return
        processes = min(self.most, len(to_come) // 2)
        for i in range(processes):  # dealt out like cards, so that they are as far ahead of the worker everywhere
            self._begin({"cmd": "ahead", "trials": [trial.to_json() for trial in to_come[i::processes]]})

    def _begin(self, command: dict[str, Any]) -> None:
        try:
            self.workers.append(self.start())
            self.workers[-1].send(command)
        except (WorkerDiedError, OSError):  # then it is compiled when its turn comes
            self.most = 0

    def close(self) -> None:
        """End them, whatever they are at."""
        for worker in self.workers:
            worker.kill()
            worker.close()
        self.workers.clear()
        self.most = 0
