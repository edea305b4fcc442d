"""Measures how exact the real backends are: one reference a case, every backend judged by it. No torch here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.case import Case
from fabench.parity.target import Target
from fabench.probe import Probe
from fabench.protocol import FIRST_ROW
from fabench.worker_process import WorkerDiedError, WorkerProcess

CASE_LIMIT_S = 300.0
POLL_S = 0.05


@dataclass
class Reading:
    """One backend on one case."""

    backend: str
    case: Case
    parity: dict[str, Any] | None
    passed: bool
    reason: str = ""
    """Why there are no numbers, or what failed."""


class Watcher:
    """Is told how a calibration goes on."""

    def working(self, backend: str | None, case: Case) -> None:
        """What is at work: a backend, or its reference."""

    def done(self, case: Case, passed: int, failed: int) -> None:
        """A case is done: on so many backends it has passed, on so many failed, the others have no numbers."""


@dataclass
class Calibrator:
    """Runs the grid over backends in a worker; a backend that kills it is left out from then on."""

    probe: Probe
    backends: list[str]
    readings: list[Reading] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Backend -> why it was left out."""
    cases: Sequence[Case] = ()
    """What was to be measured."""
    stopped: str = ""
    """Why the last of them were not."""
    interrupted: bool = False
    worker: WorkerProcess | None = None
    watcher: Watcher = field(default_factory=Watcher)

    def run(self, cases: Sequence[Case], budget_s: float | None = None) -> None:
        """Measure, until the budget is used up or somebody interrupts."""
        began, self.cases = time.monotonic(), cases
        try:
            for case in cases:
                if budget_s is not None and time.monotonic() - began > budget_s:
                    self.stopped = f"the budget of {budget_s:g} s is used up"
                    return
                self._case(case)
                verdicts = [r.passed for r in self.readings if r.case == case and r.parity is not None]
                self.watcher.done(case, sum(verdicts), len(verdicts) - sum(verdicts))
        except KeyboardInterrupt:
            self.stopped, self.interrupted = "the run was interrupted", True
        finally:
            self._end()

    def _case(self, case: Case) -> None:
        """One case for all backends still in, again without a backend that ended the worker."""
        while True:
            able = [b for b in self.backends if b not in self.lost and not self._known(b, case)]
            if not able:
                return
            try:
                self._measure(case, able)
            except WorkerDiedError as death:
                row = self.worker.board.row - FIRST_ROW if self.worker is not None else 0
                self._end()
                guilty = able[row] if 0 <= row < len(able) else able[0]
                self.lost[guilty] = f"{death} on {case.label()}"

    def _known(self, backend: str, case: Case) -> bool:
        return any(r.backend == backend and r.case == case for r in self.readings)

    def _measure(self, case: Case, able: list[str]) -> None:
        worker = self._ready(able[0])
        worker.send({"cmd": "calibrate", "key": case.key, "backends": able})
        deadline = time.monotonic() + CASE_LIMIT_S
        while True:
            at_work = worker.board.row - FIRST_ROW
            self.watcher.working(able[at_work] if 0 <= at_work < len(able) else None, case)
            event = worker.next_event(POLL_S)
            if event is None and time.monotonic() > deadline:
                raise WorkerDiedError("timeout", f"no answer within {CASE_LIMIT_S:.0f} s")
            if event is None:
                continue
            if event["ev"] == "reading":
                self.readings.append(Reading(case=case, **event["reading"]))
            elif event["ev"] == "failed":
                raise WorkerDiedError("error", event["message"])
            elif event["ev"] == "trial_done":
                return

    def _ready(self, backend: str) -> WorkerProcess:
        if self.worker is None:
            self.worker = Target(backend, self.probe.device).start()
        return self.worker

    def _end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()
            self.worker = None


def able(probe: Probe, names: Sequence[str]) -> list[str]:
    """Those of `names` that can run on the device."""
    return [n for n in names if probe.backends[n].unavailable is None]
