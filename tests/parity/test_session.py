"""The supervised worker: crashes, exits and hangs are findings, and the rest still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fabench.case import Case
from fabench.parity import session as sessions
from fabench.parity.battery import EVERYWHERE
from fabench.parity.budget import Budget
from fabench.parity.session import Left, Session
from fabench.parity.target import Target
from fabench.parity.trial import Result, Trial
from proof import CPU

GALLERY = str(Path(__file__).resolve().parents[1] / "mutants" / "gallery.py")
MARGIN_S = 5.0
"""For a machine that is busy."""
CASE = Case(1, 2, 64, 64, 32)


def trial(**changes: object) -> Trial:
    return Trial(replace(CASE, **changes), ("rho", "type"))  # type: ignore[arg-type]


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    made = Session(Target(request.param, CPU, (f"{GALLERY}:{request.param}",)), call_limit_s=4.0)
    yield made
    made.close()


def endings(results: list[Result]) -> list[tuple[str, str]]:
    return [(r.probe, r.ending) for r in results]


@pytest.mark.parametrize("session", ["aborts_in_fp32"], indirect=True)
def test_a_crash_is_a_result_and_the_next_trial_runs(session: Session) -> None:
    assert endings(session.trial(trial())) == [("rho", "passed"), ("type", "passed")]
    (crash,) = session.trial(trial(dtype="fp32"))
    assert (crash.probe, crash.ending) == ("rho", "crashed")
    assert "SIGABRT" in crash.message
    assert endings(session.trial(trial(dtype="fp16"))) == [("rho", "passed"), ("type", "passed")]
    assert session.deaths == 1


@pytest.mark.parametrize("session", ["hangs_at_97"], indirect=True)
def test_a_hang_is_a_result_and_the_budget_cuts_the_rest(session: Session) -> None:
    results: list[Result] = []
    left = session.run([trial(Nq=97, Nk=97), trial(), trial(seed=1)], results.append)
    assert (results[0].probe, results[0].ending) == ("rho", "timeout")
    assert endings(results[1:]) == [("rho", "passed"), ("type", "passed")] * 2
    assert left.trials == 0
    assert session.run([trial()] * 5, results.append, fail_fast=True).trials == 0
    session.budget = Budget(1e-9)
    assert session.run([trial()] * 5, results.append) == Left(5, "the budget of 1e-09 s is used up")


@pytest.mark.parametrize("session", ["exits"], indirect=True)
def test_an_exit_is_a_crash_and_stops_the_battery_if_asked(session: Session) -> None:
    results: list[Result] = []
    left = session.run([trial(), trial(seed=1)], results.append, fail_fast=True)
    assert results[0].ending == "crashed"
    assert "sys.exit(3)" in results[0].message
    assert (left.trials, left.why) == (1, "--fail-fast")


def kernel(tmp_path: Path, body: str) -> Target:
    """A kernel that is right, after `body` has run in every call."""
    path = tmp_path / "slow.py"
    path.write_text(
        "import time\nimport torch\n\ncalls = 0\n\n"
        "def attention(q, k, v):\n    global calls\n    calls += 1\n"
        f"    {body}\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n"
    )
    return Target("attention", CPU, (f"{path}:attention",))


@pytest.fixture
def examined(tmp_path: Path) -> Iterator[Callable[[str], Session]]:
    sessions: list[Session] = []

    def make(body: str) -> Session:
        sessions.append(Session(kernel(tmp_path, body), call_limit_s=60.0))
        return sessions[-1]

    yield make
    for made in sessions:
        made.close()


def test_a_trial_is_given_up_when_the_budget_is_spent(examined: Callable[[str], Session]) -> None:
    """One trial with every probe takes several times as long as the budget."""
    session, results = examined("time.sleep(0.4)"), list[Result]()
    assert endings(session.trial(trial())) == [("rho", "passed"), ("type", "passed")]  # the worker has started
    session.budget = Budget(2.0)

    began = time.monotonic()
    left = session.run([replace(trial(seed=s), probes=EVERYWHERE) for s in range(5)], results.append)

    assert time.monotonic() - began < 2.0 + MARGIN_S
    assert 0 < left.probes < len(EVERYWHERE)
    assert left == Left(4, "the budget of 2 s is used up", probes=left.probes)
    done, given_up = results[: -left.probes], results[-left.probes :]
    assert {r.ending for r in done} == {"passed"}
    assert {(r.ending, r.message.partition(": ")[2]) for r in given_up} == {("skipped", left.why)}
    assert {r.probe for r in results} == set(EVERYWHERE)
    assert session.doubt() == []


def test_a_call_that_the_budget_ends_is_no_failure_and_a_doubt(examined: Callable[[str], Session]) -> None:
    session, results = examined("time.sleep(300 if calls > 1 else 0)"), list[Result]()
    session.trial(trial())
    session.call_limit_s, session.budget = 10.0, Budget(4.0)

    began = time.monotonic()
    left = session.run([trial(seed=1)], results.append)

    assert time.monotonic() - began < 4.0 + MARGIN_S
    assert (left.trials, left.probes) == (0, 2)
    assert [r.message for r in results] == [f"given up: {left.why}", f"not run: {left.why}"]
    assert "is no failure; a call that takes 10 s is one, a hang" in session.doubt()[0]
    assert session.deaths == 0


def test_compiling_and_starting_a_worker_are_apart(examined: Callable[[str], Session]) -> None:
    """A shape's first call counts as compiling."""
    session, results = examined("time.sleep(7 if calls == 1 else 0)"), list[Result]()
    session.budget = Budget(6.0)

    assert session.run([trial(), trial(seed=1)], results.append) == Left()
    assert endings(results) == [("rho", "passed"), ("type", "passed")] * 2


def test_compiling_takes_at_most_as_long_again(examined: Callable[[str], Session]) -> None:
    session, results = examined("time.sleep(30)"), list[Result]()
    session.budget = Budget(1.0)
    began = time.monotonic()

    assert session.run([trial()], results.append).probes == 2
    assert 2.0 < time.monotonic() - began < 25.0


def test_in_tritons_interpreter_nothing_is_compiled(
    examined: Callable[[str], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    session, results = examined("time.sleep(30)"), list[Result]()
    session.budget = Budget(1.0)

    assert session.run([trial()], results.append).probes == 2
    assert {r.ending for r in results} == {"skipped"}


def test_a_child_that_a_kernel_forks_has_no_part_in_the_results(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os\nimport torch\n\n"
        "def attention(q, k, v):\n"
        "    if os.getpid() == PARENT:\n"
        "        os.fork()\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n\n"
        "PARENT = os.getpid()\n"
    )
    session = Session(Target("attention", CPU, (f"{tmp_path / 'forks.py'}:attention",)), call_limit_s=20.0)
    try:
        assert endings(session.trial(trial())) == [("rho", "passed"), ("type", "passed")]
        assert endings(session.trial(trial(seed=1))) == [("rho", "passed"), ("type", "passed")]
    finally:
        session.close()


SLOW_TO_PREPARE = """
import time
from fabench.backend import Backend, Facts, Prepared
from torch.nn.functional import scaled_dot_product_attention as sdpa

class Slow(Backend):
    facts = Facts(name="slow", summary="compiles before it is called")

    def prepare(self, case, device, *, lse=False):
        time.sleep(2 if case.Nq == 64 else 60)
        return Prepared(lambda q, k, v: sdpa(q, k, v, is_causal=case.causal, enable_gqa=True))

slow = Slow()
"""


def test_what_compiles_before_it_is_called_has_a_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_PREPARE)
    monkeypatch.setattr(sessions, "PREPARE_LIMIT_S", 4.0)
    session = Session(Target("slow", CPU, (f"{tmp_path}/slow.py:slow",)), call_limit_s=1.0)

    assert endings(session.trial(trial())) == [("rho", "passed"), ("type", "passed")]
    (hang,) = session.trial(trial(Nq=65, Nk=65))
    session.close()
    assert (hang.ending, hang.message) == ("timeout", "it was not prepared within 4 s")
