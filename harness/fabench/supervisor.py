"""Runs a plan: rounds of fresh workers, a watchdog over every row, a record of all that happens. No torch here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from fabench.case_run import CaseRun
from fabench.names import Status
from fabench.plan import PlannedRow
from fabench.protocol import CHECK, IDLE, PHASE_NAMES, REFERENCE, TIME
from fabench.spoilers import Spoilers
from fabench.supervised import Limits, Sink, Spans, Worker
from fabench.worker_process import WorkerDiedError

START_LIMIT_S = 300.0
"""A worker that is not ready by then is given up: importing torch and the backends from a cold disk is slow."""
REFERENCE_LIMIT_S = 600.0
SILENCE_LIMIT_S = 600.0
"""No event and nobody at work on the board for this long: the harness itself hangs."""
POLL_S = 0.05
AWAY_S = 1.0
"""The most that is charged between two looks: whoever looks later was stopped meanwhile (Ctrl-Z), or had no core."""
CANARY_EVERY = 20


class Supervisor:
    """Runs planned rows round by round; `start_worker(round)` gives a fresh worker."""

    def __init__(
        self,
        start_worker: Callable[[], Worker],
        start_command: dict[str, Any],
        sink: Sink,
        limits: Limits,
        *,
        canary: dict[str, Any] | None = None,
        like: Mapping[str, tuple[int, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.start_worker, self.start_command = start_worker, dict(start_command)
        self.sink, self.limits = sink, limits
        self.canary, self.like, self.clock = canary or {}, like or {}, clock
        self.worker: Worker | None = None
        self.worker_start_s = 0.0
        self._described: set[str] = set()
        self._served: set[str] = set()
        self._condemned: set[str] = set()
        self._spoilers = Spoilers()
        self._since_canary = 0

    def run_round(self, round_: int, rows: Iterable[PlannedRow], seed: int) -> None:
        """One round: every case in a shuffled order, in a worker of its own."""
        cases = [list(group) for _, group in groupby(rows, key=lambda row: row.case.id)]
        random.Random(f"{seed}/{round_}").shuffle(cases)
        try:
            self._canary("start", round_)
            for order, group in enumerate(cases):
                if self._since_canary >= CANARY_EVERY:
                    self._canary("between", round_)
                self._since_canary += len(group)
                self._case(CaseRun(group[0].case, order, {row.row_id: row for row in group}), round_)
            self._canary("end", round_)
        except BaseException:
            self._drop()  # Ctrl-C, or a full disk: what the worker is at is lost anyway
            raise
        self.close()

    def close(self) -> None:
        """End the worker, if there is one."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _drop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.close()

    def _ready_worker(self) -> Worker:
        if self.worker is None:
            began = self.clock()
            self.worker = self.start_worker()
            self._served = set()
            self._spoilers.fresh_worker()
            self.worker.send({"cmd": "start", **self.start_command})
            while True:
                event = self.worker.next_event(POLL_S)
                if event is not None and event["ev"] == "ready":
                    break
                if event is not None and event["ev"] == "failed":
                    message = f"the worker could not start: {event['message']}"
                    raise WorkerDiedError("error", message, event["traceback"])
                if self.clock() - began > START_LIMIT_S:
                    raise WorkerDiedError("error", f"the worker was not ready after {START_LIMIT_S:.0f} s")
            self.worker_start_s = self.clock() - began
        return self.worker

    def _canary(self, where: str, round_: int) -> None:
        """Time the canaries. They are no row: a worker that dies at it is replaced, and the run goes on."""
        self._since_canary = 0
        try:
            worker = self._ready_worker()
            worker.send({"cmd": "canary", "where": where, **self.canary})
            deadline = self.clock() + START_LIMIT_S
            while self.clock() < deadline:
                event = worker.next_event(POLL_S)
                if event is not None and event["ev"] == "canary":
                    self.sink.canary(event["reading"], where, round_)
                    self.start_command["null_ns"] = event["reading"]["null_ns"]
                    return
                if event is not None and event["ev"] == "failed":
                    break
        except WorkerDiedError:
            pass
        self._drop()

    def _case(self, run: CaseRun, round_: int) -> None:
        """Run a case until no row is owed, replacing the worker each time it dies."""
        for row_id in self._spoilers.apart(run.rows):
            run.set_apart(row_id)
        while run.rows:
            self.sink.working(None, run.case)
            if run.only_doubtful or self._spoilers.unfit(run.rows.values()):
                self._drop()
            try:
                worker = self._ready_worker()
            except WorkerDiedError as death:
                self._drop()
                run.failed_starts += 1
                if run.failed_starts > 1:
                    self._finish_all(run, round_, death.status, str(death), death.traceback)
                continue
            jobs = [self._job(row) for row in run.next_jobs()]
            self._served.update(row.backend for row in run.jobs)
            try:
                worker.send({"cmd": "case", "key": run.case.key, "jobs": jobs})
                if not self._collect(worker, run, round_):
                    self._drop()
            except WorkerDiedError as death:
                self._bury(worker, run, round_, death)

    def _job(self, row: PlannedRow) -> dict[str, Any]:
        described = row.row_id in self._described
        return {
            "row_id": row.row_id,
            "backend": row.backend,
            "describe": not described,
            "like": self.like.get(row.row_id),
        }

    def _collect(self, worker: Worker, run: CaseRun, round_: int) -> bool:
        """Take events until the case is done (True) or the worker must be replaced (False)."""
        last, silent = self.clock(), 0.0
        shown = IDLE
        while True:
            event = worker.next_event(POLL_S)
            now = self.clock()
            at_work = worker.board.row
            if event is None:
                passed = min(now - last, AWAY_S)
                silent += passed
                if self._overdue(worker, run, round_, passed):
                    return False
                if at_work == IDLE and silent > SILENCE_LIMIT_S:
                    self._finish_all(run, round_, "error", f"no sign of life for {SILENCE_LIMIT_S:.0f} s")
                    return False
            elif event["ev"] == "row":
                self._finish(run, round_, event["row_id"], event["fields"], event["spans_s"])
                if event["fatal"]:
                    return False
            elif event["ev"] == "case_done":
                for row in run.jobs:
                    fields = failure("error", "the worker ended the case without this row")
                    self._finish(run, round_, row.row_id, fields)
                return True
            elif event["ev"] == "spoilt":
                if self._is_spoilt(run, event["row_id"]):
                    return False
            elif event["ev"] == "failed":
                raise WorkerDiedError(event["status"], f"the harness failed: {event['message']}", event["traceback"])
            if event is not None:
                silent = 0.0
            if at_work != shown:
                shown = at_work
                self.sink.working(run.at_work(at_work), run.case)
            last = now

    def _overdue(self, worker: Worker, run: CaseRun, round_: int, passed: float) -> bool:
        """Charge the time to whoever is at work; end the row that has used up its own. True if the worker must go."""
        board_row, phase = worker.board.row, worker.board.phase
        if board_row == REFERENCE:
            key, limit = ("reference", False), REFERENCE_LIMIT_S
        else:
            planned = run.at_work(board_row)
            if planned is None:
                return False
            own = phase in (CHECK, TIME)
            key, limit = (planned.row_id, own), self.limits.row_s if own else self.limits.prepare_s
        run.used[key] = run.used.get(key, 0.0) + passed
        if run.used[key] <= limit:
            return False
        if board_row == REFERENCE:
            self._finish_all(run, round_, "error", f"the reference took more than {limit:.0f} s")
        else:
            detail = f"{PHASE_NAMES.get(phase, 'running')} took more than {limit:g} s"
            self._finish(run, round_, key[0], failure("timeout", detail))
        return True

    def _bury(self, worker: Worker, run: CaseRun, round_: int, death: WorkerDiedError) -> None:
        """Give the row that was at work the worker's death as its status, and let the others try again.

        What corrupts a process need not be at work when the process dies of it. So a backend is believed to be the
        cause only once it has killed a worker that no other has used.
        """
        board_row = worker.board.row
        guilty = run.at_work(board_row) or (run.jobs[0] if len(run.jobs) == 1 else None)
        if board_row == REFERENCE:
            self._finish_all(run, round_, "error", f"the reference failed: {death}", death.traceback)
        elif guilty is not None and self._served > {guilty.backend} and guilty.backend not in self._condemned:
            run.set_apart(guilty.row_id)
        elif guilty is not None:
            self._condemned.add(guilty.backend)
            self._finish(run, round_, guilty.row_id, failure(death.status, str(death), death.traceback))
        else:
            run.alone = True
        self._drop()

    def _is_spoilt(self, run: CaseRun, row_id: str) -> bool:
        """True if the worker must go because a row's backend changed it for good, and others use it too."""
        backend = next(row.backend for row in run.jobs if row.row_id == row_id)
        if not self._spoilers.seen(backend, self._served):
            return False
        run.set_apart(row_id)
        return True

    def _finish(self, run: CaseRun, round_: int, row_id: str, fields: dict[str, Any], spans: Spans = ()) -> None:
        planned = run.rows.pop(row_id, None)
        if planned is None:
            return
        if fields.get("memory") is not None:
            self._described.add(row_id)
        if (run.alone or row_id in run.doubtful) and fields["status"] == "ok":
            fields = {**fields, "flags": sorted({*fields.get("flags", ()), "not_interleaved"})}
        if self.worker_start_s and fields.get("spent"):
            fields["spent"]["worker_start_s"], self.worker_start_s = self.worker_start_s, 0.0
        self.sink.row(planned, round_, run.order, fields, spans)

    def _finish_all(self, run: CaseRun, round_: int, status: str, message: str, traceback: str | None = None) -> None:
        for row_id in list(run.rows):
            self._finish(run, round_, row_id, failure(status, message, traceback))


def failure(status: Status | str, message: str, traceback: str | None = None) -> dict[str, Any]:
    """The row fields of a failure seen from outside the worker."""
    return {"status": status, "detail": {"message": message, "traceback": traceback}}
