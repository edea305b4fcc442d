"""Where a battery mostly waits for a compiler, idle cores compile for the trials to come."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fabench.case import Case
from fabench.parity import ahead
from fabench.parity.ahead import Ahead
from fabench.parity.session import Session
from fabench.parity.target import Target
from fabench.parity.trial import Result, Trial
from fabench.worker_process import WorkerDiedError
from proof import CPU

CASE = Case(1, 2, 64, 64, 32)
TRIALS = [Trial(replace(CASE, Nq=64 + i), ("rho",)) for i in range(20)]
SLOW_TO_COMPILE = '''
import os, time
from pathlib import Path
import torch
from torch.nn.functional import scaled_dot_product_attention

FOLDER = Path(__file__).parent

def attention(q, k, v, *, causal=False, scale=None):
    """A kernel whose first call of a shape takes long, unless its cache on disk has it."""
    kept = FOLDER / f"{q.shape[2]}.compiled"
    if not kept.exists():
        time.sleep(0.3)
        kept.write_text(str(os.getpid()))
    if q.shape[2] == 78 and os.getpid() != int((FOLDER / "64.compiled").read_text()):
        os.abort()
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
'''


class Worker:
    """Notes what it is told."""

    def __init__(self, dead: bool = False) -> None:
        self.dead, self.told, self.killed = dead, list[dict[str, Any]](), False

    def send(self, message: dict[str, Any]) -> None:
        if self.dead:
            raise WorkerDiedError("crashed", "it is gone")
        self.told.append(message)

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        assert self.killed


def result(compile_s: float, seconds: float) -> Result:
    return Result("rho", TRIALS[0], "passed", compile_s=compile_s, seconds=seconds)


def test_the_trials_to_come_are_dealt_out_once_compiling_takes_most_of_the_time() -> None:
    made: list[Worker] = []
    helpers = Ahead(lambda: made.append(Worker()) or made[-1], most=3)  # type: ignore[func-returns-value,arg-type,return-value]

    helpers.look([result(3.0, 3.5)], TRIALS)
    assert not made
    helpers.look([result(2.0, 2.5)], TRIALS[:10])

    dealt = [[t["key"] for t in worker.told[0]["trials"]] for worker in made]
    assert dealt == [[t.case.key for t in TRIALS[:10][i::3]] for i in range(3)]
    helpers.look([result(9.0, 9.0)], TRIALS)
    assert len(made) == 3
    helpers.close()
    assert all(worker.killed for worker in made)


@pytest.mark.parametrize(
    ("compile_s", "seconds", "to_come", "most"),
    [(3.9, 4.0, 20, 4), (9.0, 19.0, 20, 4), (9.0, 9.0, 7, 4), (9.0, 9.0, 20, 0)],
    ids=["it compiles quickly", "it computes longer than it compiles", "few are left", "no core is idle"],
)
def test_nothing_is_started_where_it_would_not_pay(compile_s: float, seconds: float, to_come: int, most: int) -> None:
    helpers = Ahead(lambda: pytest.fail("a process was started"), most=most)

    helpers.look([result(compile_s, seconds)], TRIALS[:to_come])


@pytest.mark.parametrize(
    ("cores", "free_gib", "most"), [(2, 140, 0), (4, 140, 2), (16, 140, 12), (16, 24, 5), (16, 7, 0), (1, 0, 0)]
)
def test_there_are_as_many_processes_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free_gib: int, most: int
) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: set(range(cores)))

    assert ahead.affordable(free_gib << 30) == most


def test_every_trial_is_dealt_to_a_process_also_where_few_are_left() -> None:
    made: list[Worker] = []
    helpers = Ahead(lambda: made.append(Worker()) or made[-1], most=12)  # type: ignore[func-returns-value,arg-type,return-value]
    helpers.look([result(9.0, 9.0)], TRIALS[:9])

    assert len(made) == 4
    assert sorted(str(t["key"]) for w in made for t in w.told[0]["trials"]) == sorted(
        str(t.case.key) for t in TRIALS[:9]
    )


def test_a_process_that_cannot_be_started_or_dies_at_once_is_done_without() -> None:
    made: list[Worker] = []
    helpers = Ahead(lambda: made.append(Worker(dead=True)) or made[-1], most=3)  # type: ignore[func-returns-value,arg-type,return-value]
    helpers.look([result(9.0, 9.0)], TRIALS)
    helpers.close()


def test_shapes_are_compiled_in_other_processes_and_their_death_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "LEAST_COMPILE_S", 0.2)
    kernel = tmp_path / "slow.py"
    kernel.write_text(SLOW_TO_COMPILE)
    session = Session(Target("attention", CPU, (f"{kernel}:attention",)), call_limit_s=60.0)
    session.ahead.most = 1
    session.ahead.look([result(9.0, 9.0)], TRIALS[1:])
    began = time.monotonic()
    while not (tmp_path / "65.compiled").exists():
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    results: list[Result] = []
    left = session.run(TRIALS, results.append)
    session.close()

    assert left.trials == 0
    assert {r.ending for r in results} == {"passed"}
    owners = {int(kept.read_text()) for kept in tmp_path.glob("*.compiled")}
    assert len(owners) == 2
