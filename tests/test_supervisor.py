"""The supervisor with scripted workers and a clock of its own: scheduling, timeouts, deaths, restarts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from fabench.case import Case, row_id
from fabench.plan import PlannedRow
from fabench.protocol import CHECK, FIRST_ROW, IDLE, PREPARE, REFERENCE, TIME
from fabench.supervised import Limits, Spans
from fabench.supervisor import Supervisor
from fabench.worker_process import WorkerDiedError


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeBoard:
    row: int = IDLE
    phase: int = PREPARE


READY = {"ev": "ready"}
FAILED = {"ev": "failed", "status": "error", "message": "KeyError: 'x'", "traceback": "..."}


class ScriptedWorker:
    """Answers a case by the script of each backend: a list of (board row offset is its own) steps."""

    def __init__(
        self, clock: Clock, scripts: dict[str, list[Any]], reference: list[Any], start: dict[str, Any]
    ) -> None:
        self.clock, self.scripts, self.reference, self.start = clock, scripts, reference, start
        self.board = FakeBoard()
        self.steps: deque[tuple[int, str | None, Any]] = deque()
        self.killed = self.closed = self.company = False

    def send(self, message: dict[str, Any]) -> None:
        if message["cmd"] == "start":
            self.steps.append((IDLE, None, self.start))
        elif message["cmd"] == "canary":
            self.steps.append((IDLE, None, {"ev": "canary", "reading": {"null_ns": None}}))
        else:
            self.company = len(message["jobs"]) > 1
            self.steps.extend((REFERENCE, None, step) for step in self.reference)
            for index, job in enumerate(message["jobs"]):
                self.steps.extend((FIRST_ROW + index, job["row_id"], s) for s in self.scripts[job["backend"]])
            self.steps.append((IDLE, None, {"ev": "case_done"}))

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        self.clock.now += 0.001
        if not self.steps:
            self.clock.now += timeout
            return None
        self.board.row, row, step = self.steps[0]
        match step:
            case "die idle":
                self.board.row = IDLE
                raise WorkerDiedError("crashed", "the worker exited with code 1")
            case ("busy", phase, seconds):
                self.board.phase = phase
                self.clock.now += timeout
                left = seconds - timeout
                self.steps[0] = (self.board.row, row, ("busy", phase, left))
                if left <= 0:
                    self.steps.popleft()
                return None
            case ("away", phase, seconds):  # the supervisor itself does not run
                self.board.phase = phase
                self.clock.now += seconds
                self.steps.popleft()
                return None
            case "die in company" if not self.company:
                self.steps[0] = (self.board.row, row, "ok")
                return None
            case "die" | "die in company":
                raise WorkerDiedError("crashed", "the worker died of SIGSEGV")
            case "spoils":
                self.steps.popleft()
                return {"ev": "spoilt", "row_id": row}
            case "ctrl-c":
                raise KeyboardInterrupt
            case "oom-killed":
                raise WorkerDiedError("oom", "the kernel killed the worker: out of host memory")
            case "fatal":
                self.steps.clear()
                return {"ev": "row", "row_id": row, "fields": {"status": "crashed"}, "fatal": True, "spans_s": []}
            case dict():
                self.steps.popleft()
                return step
            case status:
                self.steps.popleft()
                return {"ev": "row", "row_id": row, "fields": {"status": status}, "fatal": False, "spans_s": []}

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        self.closed = True


@dataclass
class Ledger:
    """A sink that keeps what it is told."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[tuple[int, str]] = field(default_factory=list)
    canaries: list[tuple[str, int]] = field(default_factory=list)

    def row(self, planned: PlannedRow, round_: int, order: int, fields: dict[str, Any], spans: Spans) -> None:
        self.rows[planned.backend] = fields
        self.order.append((round_, planned.row_id))

    def canary(self, reading: dict[str, Any], where: str, round_: int) -> None:
        self.canaries.append((where, round_))

    def working(self, planned: PlannedRow | None, case: Case) -> None:
        pass

    @property
    def statuses(self) -> dict[str, str]:
        return {backend: fields["status"] for backend, fields in self.rows.items()}


def planned(backend: str, N: int = 128) -> PlannedRow:
    case = Case(1, 2, N, N, 32)
    return PlannedRow(row_id(case, backend), case, backend, None, None, 0, 0.0)


class Harness:
    """A supervisor over scripted workers; `workers` are those it started."""

    def __init__(
        self,
        scripts: dict[str, list[Any]],
        reference: list[Any] | None = None,
        start: dict[str, Any] = READY,
        **limits: float,
    ) -> None:
        self.clock, self.ledger, self.workers = Clock(), Ledger(), list[ScriptedWorker]()

        def start_worker() -> ScriptedWorker:
            self.workers.append(ScriptedWorker(self.clock, scripts, reference or [], start))
            return self.workers[-1]

        self.supervisor = Supervisor(start_worker, {}, self.ledger, Limits(**limits), clock=self.clock)  # type: ignore[arg-type]

    def run(self, *rows: PlannedRow, round_: int = 0) -> dict[str, str]:
        self.supervisor.run_round(round_, rows, seed=0)
        return self.ledger.statuses


def test_every_row_of_a_case_is_reported_once() -> None:
    harness = Harness({"a": ["ok"], "b": ["wrong_result"]})

    assert harness.run(planned("a"), planned("b")) == {"a": "ok", "b": "wrong_result"}
    assert len(harness.ledger.order) == 2


@pytest.mark.parametrize(
    ("death", "status", "workers"), [("die", "crashed", 4), ("oom-killed", "oom", 4), ("fatal", "crashed", 2)]
)
def test_a_backend_that_kills_its_worker_takes_no_other_row_with_it(death: str, status: str, workers: int) -> None:
    harness = Harness({"a": ["ok"], "bad": [("busy", CHECK, 0.1), death], "c": ["ok"]})

    assert harness.run(planned("a"), planned("bad"), planned("c")) == {"a": "ok", "bad": status, "c": "ok"}
    assert len(harness.workers) == workers
    assert harness.workers[0].killed


def test_a_row_that_dies_of_what_another_did_is_ok_in_a_worker_of_its_own() -> None:
    harness = Harness({"corrupts": ["ok"], "victim": ["die in company"], "c": ["ok"]})

    assert harness.run(planned("corrupts"), planned("victim"), planned("c")) == dict.fromkeys(
        ("corrupts", "victim", "c"), "ok"
    )
    assert harness.ledger.rows["victim"]["flags"] == ["not_interleaved"]


def test_a_backend_that_has_killed_a_worker_of_its_own_is_believed_the_next_time() -> None:
    harness = Harness({"a": ["ok"], "bad": ["die"]})

    harness.run(*(planned(name, N) for N in (64, 128, 256) for name in ("a", "bad")))

    assert harness.ledger.statuses == {"a": "ok", "bad": "crashed"}
    assert len(harness.workers) == 2 + 3  # one more to make sure, then one for each death but the last case's


def test_a_row_that_finished_before_the_death_is_not_measured_again() -> None:
    harness = Harness({"a": ["ok"], "bad": [("busy", TIME, 0.1), "die"]})

    harness.run(planned("a"), planned("bad"))

    assert [r for _, r in harness.ledger.order].count(planned("a").row_id) == 1


def test_a_hang_ends_as_a_timeout_after_the_rows_own_time() -> None:
    harness = Harness({"slow": [("busy", TIME, 1e9)], "b": ["ok"]}, row_s=7.0)

    assert harness.run(planned("slow"), planned("b")) == {"slow": "timeout", "b": "ok"}
    assert harness.ledger.rows["slow"]["detail"]["message"] == "timing took more than 7 s"
    assert 7.0 < harness.clock.now < 9.0


@pytest.mark.parametrize("row", ["ok", "wrong_result"])
def test_while_the_run_itself_is_stopped_no_row_uses_up_its_time(row: str) -> None:
    harness = Harness({"a": [("busy", TIME, 1.0), ("away", TIME, 3600.0), ("busy", TIME, 1.0), row]}, row_s=7.0)

    assert harness.run(planned("a")) == {"a": row}


def test_after_a_stop_a_hang_is_still_a_timeout() -> None:
    harness = Harness({"a": [("away", TIME, 3600.0), ("busy", TIME, 1e9)]}, row_s=7.0)

    assert harness.run(planned("a")) == {"a": "timeout"}


def test_preparing_has_a_limit_of_its_own() -> None:
    harness = Harness({"jit": [("busy", PREPARE, 200.0), "ok"]}, row_s=7.0, prepare_s=300.0)

    assert harness.run(planned("jit")) == {"jit": "ok"}


def test_idle_time_is_charged_to_nobody() -> None:
    harness = Harness({"a": [("busy", TIME, 5.0), ("busy", TIME, 1.0), "ok"]}, row_s=7.0)

    assert harness.run(planned("a")) == {"a": "ok"}


def test_a_reference_that_kills_its_worker_leaves_errors_that_name_it() -> None:
    harness = Harness({"a": ["ok"], "b": ["ok"]}, reference=[("busy", CHECK, 0.1), "die"])

    assert harness.run(planned("a"), planned("b")) == {"a": "error", "b": "error"}
    assert harness.ledger.rows["a"]["detail"]["message"].startswith("the reference failed: ")


def test_cases_are_shuffled_in_each_round_by_the_seed_alone() -> None:
    rows = [planned("a", N) for N in range(64, 64 + 32)]
    orders = []
    for round_ in (0, 1, 0):
        harness = Harness({"a": ["ok"]})
        harness.run(*rows, round_=round_)
        orders.append([r for _, r in harness.ledger.order])

    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert orders[0] != [row.row_id for row in rows]


def test_canaries_frame_a_round_and_recur_within_it() -> None:
    harness = Harness({"a": ["ok"]})

    harness.run(*[planned("a", N) for N in range(64, 64 + 45)])

    assert [where for where, _ in harness.ledger.canaries] == ["start", "between", "between", "end"]


def test_a_new_round_starts_a_fresh_worker() -> None:
    harness = Harness({"a": ["ok"]})

    harness.run(planned("a"))
    harness.run(planned("a"), round_=1)

    assert len(harness.workers) == 2
    assert all(worker.closed for worker in harness.workers)


def test_a_harness_that_fails_inside_the_worker_is_an_error_of_every_row_left() -> None:
    harness = Harness({"a": ["ok"], "b": [FAILED]})

    assert harness.run(planned("a"), planned("b")) == {"a": "ok", "b": "error"}
    assert "the harness failed: KeyError" in harness.ledger.rows["b"]["detail"]["message"]


def test_after_a_death_with_nobody_at_work_rows_go_one_by_one_to_find_whose_it_was() -> None:
    harness = Harness({"a": ["ok"], "bad": ["die idle"], "c": ["ok"]})

    assert harness.run(planned("bad"), planned("a"), planned("c")) == {"bad": "crashed", "a": "ok", "c": "ok"}
    assert harness.ledger.rows["a"]["flags"] == ["not_interleaved"]


def test_a_worker_that_cannot_start_is_tried_twice_and_then_told_of_every_row() -> None:
    harness = Harness({"a": ["ok"], "b": ["ok"]}, start=FAILED)

    assert harness.run(planned("a"), planned("b")) == {"a": "error", "b": "error"}
    assert "the worker could not start: KeyError" in harness.ledger.rows["b"]["detail"]["message"]
    assert all(worker.killed for worker in harness.workers)


def test_an_interrupt_kills_the_worker_instead_of_waiting_for_it() -> None:
    harness = Harness({"a": ["ctrl-c"]})

    with pytest.raises(KeyboardInterrupt):
        harness.run(planned("a"))

    assert harness.workers[0].killed
