"""Runs a battery on one kernel in a worker process: watches over every call, replaces the worker when it dies.

No torch here: what crashes, exits or hangs is the worker, and that is a finding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.errors import InternalError, UsageError
from fabench.interrupts import by
from fabench.parity.ahead import Ahead, affordable
from fabench.parity.budget import Budget, is_compiling, is_preparing
from fabench.parity.target import Target
from fabench.parity.trial import BAD_ENDINGS, PROBES, Ending, ProbeName, Result, Trial
from fabench.protocol import FIRST_ROW, IDLE
from fabench.text import seconds_text
from fabench.worker_process import WorkerDiedError, WorkerProcess

START_LIMIT_S = PREPARE_LIMIT_S = 300.0
"""For a worker, and for a backend that compiles before it is called, as in a run."""
IDLE_LIMIT_S = 600.0
"""No call of the kernel runs and nothing is heard for this long: the harness itself hangs."""
POLL_S = 0.02
MOST_DEATHS = 20
"""A kernel that took this many workers with it has been seen enough."""
LATER_LIMIT, LEAST_LATER_S = 0.2, 2.0
"""After a first hang, later ones are given up after this part of the limit, but no less than 2 s."""
MOST_DIAGNOSED, SURE_VOTES, LOOK_EVERY = 16, 3, 7


@dataclass
class Left:
    """What a battery did not get to, and why."""

    trials: int = 0
    why: str = ""
    interrupted: bool = False
    """By Ctrl-C: what is known is all that is wanted."""
    probes: int = 0
    """Of one trial more, which was begun."""


@dataclass
class Session:
    """One kernel's worker, restarted as often as needed."""

    target: Target
    call_limit_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    worker: WorkerProcess | None = None
    deaths: int = 0
    hangs: int = 0
    diagnosed: dict[str, int] = field(default_factory=dict)
    """Name -> how many failures it was given to; '' for those without one."""
    trials_run: int = 0
    budget: Budget = field(default_factory=lambda: Budget(math.inf))
    """No trial begins once it is spent, and one that is running is given up then."""
    shown: Trial | None = None
    """What a file of real tensors holds."""
    given_up: int = 0
    """Probes of a trial that the budget ended."""
    given_up_s: float | None = None
    """How long a call had run when it did; 0 if none was running."""
    ahead: Ahead = field(init=False)

    def __post_init__(self) -> None:
        self.ahead = Ahead(self.target.start, affordable(self.target.device.free_bytes))

    def run(self, trials: Sequence[Trial], on_result: Callable[[Result], None], *, fail_fast: bool = False) -> Left:
        """Run the trials in order; what the budget cuts off is returned."""
        for i, trial in enumerate(trials):
            if self.budget.spent:
                return Left(len(trials) - i, self.budget.why)
            if self.deaths >= MOST_DEATHS:
                return Left(len(trials) - i, f"it crashed or hung {self.deaths} times")
            try:
                results = self.trial(trial)
            except KeyboardInterrupt as error:
                self._drop()
                return Left(len(trials) - i, f"it was interrupted{by(error)}", interrupted=True)
            for result in results:
                on_result(result)
            self.ahead.look(results, trials[i + 1 :])
            if self.given_up_s is not None:
                return Left(len(trials) - i - 1, self.budget.why, probes=self.given_up)
            if fail_fast and any(r.bad for r in results):
                return Left(len(trials) - i - 1, "--fail-fast")
        return Left()

    def trial(self, trial: Trial, *, diagnose: bool | None = None) -> list[Result]:
        """The results of one trial; the death of the worker is one of them. `diagnose` None: as far as worth it.

        None at all if the budget is spent. Probes for which it leaves no time are skipped, for that reason.
        """
        if self.budget.spent:
            return []
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
        except _SpentError as spent:
            results += self._given_up(trial, results, spent.call_s)
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
        """The results on a file of real tensors. Raises UsageError if it cannot be read."""
        results: list[Result] = []
        worker = self._ready()
        worker.send({"cmd": "real", "path": path})
        try:
            self._collect(worker, results)
        except _SpentError as spent:
            self.given_up_s = spent.call_s
            self._drop()
        except (WorkerDiedError, _HungError) as end:
            if self.shown is None:
                raise UsageError(f"'{path}' must be a file of tensors that can be read here, got: {end}") from None
            ending: Ending = "crashed" if isinstance(end, WorkerDiedError) else "timeout"
            results.append(self._buried(self.shown, results, ending, str(end)))
        return results

    def doubt(self) -> list[str]:
        """A sentence if the budget ended a call that was on the way to a hang."""
        if self.given_up_s is None or self.given_up_s < max(LEAST_LATER_S, self.call_limit_s * LATER_LIMIT):
            return []
        ran, limit = seconds_text(self.given_up_s), f"{self.call_limit_s:g} s"
        return [f"the budget ended a call after {ran}, which is no failure; a call that takes {limit} is one, a hang"]

    def close(self) -> None:
        """End the worker, and those that compile for it."""
        self.ahead.close()
        self._end()

    def _end(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _drop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self._end()

    def _ready(self) -> WorkerProcess:
        if self.worker is not None:
            return self.worker
        began = self.clock()
        self.worker = self.target.start()
        while self.clock() - began < START_LIMIT_S:
            event = self.worker.next_event(POLL_S)
            if event is not None and event["ev"] == "ready":
                self.budget.started(self.clock() - began)
                return self.worker
            if event is not None and event["ev"] == "failed":
                raise InternalError(f"the worker could not start: {event['message']}")
        raise InternalError(f"the worker was not ready after {START_LIMIT_S:.0f} s")

    def _collect(self, worker: WorkerProcess, results: list[Result]) -> None:
        """Take results until the trial is done. Raises WorkerDiedError, _HungError or _SpentError."""
        limit = self.call_limit_s if not self.hangs else max(LEAST_LATER_S, self.call_limit_s * LATER_LIMIT)
        seen, since = (IDLE, 0), self.clock()
        while True:
            event = worker.next_event(POLL_S)
            now = self.clock()
            if event is not None:
                if event["ev"] == "result":
                    results.append(Result.from_json(event["result"]))
                    self.budget.result(results[-1].compile_s)
                elif event["ev"] == "trial":
                    self.shown = Trial.from_json(event["trial"])
                elif event["ev"] == "trial_done":
                    return
                elif event["ev"] == "usage":
                    raise UsageError(event["message"])
                elif event["ev"] == "failed":
                    raise InternalError(f"{event['message']}\n{event['traceback']}")
                since = now
                continue
            at_work = worker.board.row, worker.board.phase
            self.budget.look(at_work[0] != IDLE and is_compiling(at_work[1]))
            if at_work != seen:
                seen, since = at_work, now
            elif at_work[0] != IDLE and is_preparing(at_work[1]):
                if now - since > max(limit, PREPARE_LIMIT_S):
                    raise _HungError(f"it was not prepared within {max(limit, PREPARE_LIMIT_S):g} s")
            elif now - since > (limit if at_work[0] != IDLE else IDLE_LIMIT_S):
                raise _HungError(f"a call did not return within {limit:g} s")
            if self.budget.spent:
                raise _SpentError(now - since if at_work[0] != IDLE else 0.0)

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

    def _given_up(self, trial: Trial, results: list[Result], call_s: float) -> list[Result]:
        """The probes that the budget leaves no time for, the one at work among them."""
        assert self.worker is not None
        row = self.worker.board.row
        self._drop()
        left: list[ProbeName] = [p for p in trial.probes if p not in {r.probe for r in results}]
        self.given_up, self.given_up_s = len(left), call_s
        begun = PROBES[row - FIRST_ROW] if row >= FIRST_ROW else None
        return [
            Result(p, trial, "skipped", f"{'given up' if p == begun else 'not run'}: {self.budget.why}") for p in left
        ]


class _HungError(Exception):
    """A call of the kernel did not return."""


class _SpentError(Exception):
    """The budget is spent, after `call_s` seconds of a call."""

    def __init__(self, call_s: float) -> None:
        super().__init__()
        self.call_s = call_s


def fails(session: Session, probe: ProbeName) -> Callable[[Trial], bool]:
    """Whether `probe` fails on a trial: what the shrinker asks."""

    def failing(trial: Trial) -> bool:
        return any(r.probe == probe and r.ending in BAD_ENDINGS for r in session.trial(trial, diagnose=False))

    return failing
