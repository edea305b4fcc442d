"""The supervised worker: crashes, exits and hangs are findings, and the rest still runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fabench.case import Case
from fabench.parity.session import Session, Target
from fabench.parity.trial import Result, Trial
from proof import CPU

GALLERY = str(Path(__file__).resolve().parents[1] / "mutants" / "gallery.py")
CASE = Case(1, 2, 64, 64, 32)


def trial(**changes: object) -> Trial:
    import dataclasses

    return Trial(dataclasses.replace(CASE, **changes), ("rho", "type"))  # type: ignore[arg-type]


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
    assert session.run([trial()] * 5, results.append, budget_s=1e-9).trials == 5
    assert session.run([trial()] * 5, results.append, fail_fast=True).trials == 0


@pytest.mark.parametrize("session", ["exits"], indirect=True)
def test_an_exit_is_a_crash_and_stops_the_battery_if_asked(session: Session) -> None:
    results: list[Result] = []
    left = session.run([trial(), trial(seed=1)], results.append, fail_fast=True)
    assert results[0].ending == "crashed"
    assert "sys.exit(3)" in results[0].message
    assert (left.trials, left.why) == (1, "--fail-fast")


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
