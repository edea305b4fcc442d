"""Runs a battery on one kernel in a worker process: watches over every call, replaces the worker when it dies.

No torch here: what crashes, exits or hangs is the worker, and that is a finding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.device import Device
from fabench.errors import InternalError, UsageError
from fabench.interpreter import Interpreter
from fabench.parity.trial import BAD_ENDINGS, PROBES, Ending, ProbeName, Result, Trial
from fabench.protocol import FIRST_ROW, IDLE
from fabench.worker_process import WorkerDiedError, WorkerProcess

START_LIMIT_S = 300.0
IDLE_LIMIT_S = 600.0
"""No call of the kernel runs and nothing is heard for this long: the harness itself hangs."""
POLL_S = 0.02
MOST_DEATHS = 20
"""A kernel that took this many workers with it has been seen enough."""
LATER_LIMIT = 0.2
"""After a first hang, later ones are given up after this part of the limit, but no less than 2 s."""
MOST_DIAGNOSED, SURE_VOTES, LOOK_EVERY = 16, 3, 7


@dataclass(frozen=True)
class Target:
    """The kernel: its name in the worker, and where it comes from."""

    name: str
    device: Device
    backend_files: tuple[str, ...] = ()


@dataclass
class Left:
    """What a battery did not get to, and why."""

    trials: int = 0
    why: str = ""
    interrupted: bool = False
    """By Ctrl-C: what is known is all that is wanted."""


@dataclass
class Session:
    """One kernel's worker, restarted as often as needed."""

    target: Target
    call_limit_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    worker: WorkerProcess | None = None
    deaths: int = 0
    hangs: int = 0
    start_s: float = 0.0
    """Seconds spent starting workers."""
    diagnosed: dict[str, int] = field(default_factory=dict)
    """Name -> how many failures it was given to; '' for those without one."""
    trials_run: int = 0

    def run(
        self,
        trials: Sequence[Trial],
        on_result: Callable[[Result], None],
        *,
        budget_s: float | None = None,
        fail_fast: bool = False,
    ) -> Left:
        """Run the trials in order; what the budget (compile time and worker starts apart) cuts off is returned."""
        began, compiled, starting = self.clock(), 0.0, self.start_s
        for i, trial in enumerate(trials):
            spent = self.clock() - began - compiled - (self.start_s - starting)
            if budget_s is not None and spent > budget_s:
                return Left(len(trials) - i, f"the budget of {budget_s:g} s is used up")
            if self.deaths >= MOST_DEATHS:
                return Left(len(trials) - i, f"it crashed or hung {self.deaths} times")
            try:
                results = self.trial(trial)
            except KeyboardInterrupt:
                self._drop()
                return Left(len(trials) - i, "it was interrupted", interrupted=True)
            for result in results:
                compiled += result.compile_s
                on_result(result)
            if fail_fast and any(r.bad for r in results):
                return Left(len(trials) - i - 1, "--fail-fast")
        return Left()

    def trial(self, trial: Trial, *, diagnose: bool | None = None) -> list[Result]:
        """The results of one trial; the death of the worker is one of them. `diagnose` None: as far as worth it."""
        diagnose = self._worth_diagnosing() if diagnose is None else diagnose
        results: list[Result] = []
        try:
            worker = self._ready()
            worker.send({"cmd": "trial", "trial": trial.to_json(), "diagnose": diagnose})
            self._collect(worker, results)
        except WorkerDiedError as death:
            results.append(self._buried(trial, results, "crashed", str(death)))
        except _HungError as hang:
            results.append(self._buried(trial, results, "timeout", str(hang)))
            self.hangs += 1
        for result in results:
            if result.diagnosis:
                fault = result.diagnosis.get("fault", "")
                self.diagnosed[fault] = self.diagnosed.get(fault, 0) + 1
        if any(r.numbers.get("device_lost") for r in results):
            self._drop()
        return results

    def _worth_diagnosing(self) -> bool:
        """Naming takes longer than failing: it stops when one name is sure, but for a look now and then at others."""
        self.trials_run += 1
        most = max((n for fault, n in self.diagnosed.items() if fault), default=0)
        sure = most >= SURE_VOTES and self.trials_run % LOOK_EVERY
        return sum(self.diagnosed.values()) < MOST_DIAGNOSED and not sure

    def ask(self, command: dict[str, Any], event: str, limit_s: float = 120.0) -> dict[str, Any] | None:
        """Send one command and wait for its answer; None if the worker dies or does not answer in time."""
        try:
            worker = self._ready()
            worker.send(command)
            deadline = self.clock() + limit_s
            while self.clock() < deadline:
                message = worker.next_event(POLL_S)
                if message is not None and message["ev"] == event:
                    return message
                if message is not None and message["ev"] == "failed":
                    break
        except WorkerDiedError:
            pass
        self._drop()
        return None

    def real(self, path: str) -> list[Result]:
        """The results on a file of real tensors."""
        results: list[Result] = []
        worker = self._ready()
        worker.send({"cmd": "real", "path": path})
        self._collect(worker, results)
        return results

    def close(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _drop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.close()

    def _ready(self) -> WorkerProcess:
        if self.worker is not None:
            return self.worker
        began = self.clock()
        self.worker = WorkerProcess(ParityInterpreter())
        self.worker.send(
            {
                "cmd": "start",
                "device": self.target.device.to_json(),
                "backend": self.target.name,
                "backend_files": list(self.target.backend_files),
            }
        )
        while self.clock() - began < START_LIMIT_S:
            event = self.worker.next_event(POLL_S)
            if event is not None and event["ev"] == "ready":
                self.start_s += self.clock() - began
                return self.worker
            if event is not None and event["ev"] == "failed":
                raise InternalError(f"the worker could not start: {event['message']}")
        raise InternalError(f"the worker was not ready after {START_LIMIT_S:.0f} s")

    def _collect(self, worker: WorkerProcess, results: list[Result]) -> None:
        """Take results until the trial is done. Raises WorkerDiedError or _HungError."""
        limit = self.call_limit_s if not self.hangs else max(2.0, self.call_limit_s * LATER_LIMIT)
        seen, since = (IDLE, 0), self.clock()
        while True:
            event = worker.next_event(POLL_S)
            now = self.clock()
            if event is not None:
                if event["ev"] == "result":
                    results.append(Result.from_json(event["result"]))
                elif event["ev"] == "trial_done":
                    return
                elif event["ev"] == "usage":
                    raise UsageError(event["message"])
                elif event["ev"] == "failed":
                    raise InternalError(f"{event['message']}\n{event['traceback']}")
                since = now
                continue
            at_work = worker.board.row, worker.board.phase
            if at_work != seen:
                seen, since = at_work, now
            elif now - since > (limit if at_work[0] != IDLE else IDLE_LIMIT_S):
                raise _HungError(f"a call did not return within {limit:g} s")

    def _buried(self, trial: Trial, results: list[Result], ending: Ending, message: str) -> Result:
        """The result of the probe that was at work when the worker died; what comes after it is not run."""
        assert self.worker is not None
        row = self.worker.board.row
        known = {r.probe for r in results}
        left: list[ProbeName] = [p for p in trial.probes if p not in known and p != "type"]
        probe = PROBES[row - FIRST_ROW] if row >= FIRST_ROW else (left[0] if left else trial.probes[0])
        self.deaths += 1
        self._drop()
        return Result(probe, trial, ending, message)


class ParityInterpreter(Interpreter):
    """Starts this package's worker in the place of run's."""

    def command(self, module: str, *arguments: str) -> list[str]:
        """The command of the parity worker, whichever module is asked for."""
        return super().command("fabench.parity.worker", *arguments)


class _HungError(Exception):
    """A call of the kernel did not return."""


def fails(session: Session, probe: ProbeName) -> Callable[[Trial], bool]:
    """Whether `probe` fails on a trial: what the shrinker asks."""

    def failing(trial: Trial) -> bool:
        return any(r.probe == probe and r.ending in BAD_ENDINGS for r in session.trial(trial, diagnose=False))

    return failing
