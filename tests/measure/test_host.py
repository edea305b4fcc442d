"""What the host's time does to a measurement: spins, late queues, calls that wait, work on other streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fake_engine import MS, US, FakeEngine, Kernel
from measuring import GPU, run


def test_host_time_does_not_reach_the_samples_of_a_short_call() -> None:
    engine = FakeEngine()
    [out] = run(engine, {"a": Kernel(60 * US, host=400 * US)}).values()

    assert out.samples_ns == [pytest.approx(60 * US)] * out.n
    assert out.t_host_ns == pytest.approx(400 * US, rel=0.05)
    assert max(entry[1] for entry in engine.journal if entry[0] == "spin") >= 1.45 * 400 * US
    assert "host_sync" not in out.flags


def test_a_call_whose_host_time_grows_after_the_estimate_gets_a_longer_spin() -> None:
    engine, kernel, windows = FakeEngine(), Kernel(60 * US, host=20 * US), list[Any]()

    def launch(index: int) -> None:
        kernel.host = 20 * US if not windows else 500 * US  # quick while estimated, slow after an idle gap
        engine.kernel(kernel)

    method = method_for("burst", GPU, "normal")
    [out] = measure(
        [Candidate("a", launch, 2)], method, Limits(), engine, lambda *window: windows.append(window)
    ).values()

    assert out.samples_ns == [pytest.approx(60 * US)] * out.n
    assert "host_sync" not in out.flags


def test_a_call_that_waits_for_the_device_is_flagged_and_reports_wall_time() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(1 * MS, host=50 * US, syncs=True)}).values()

    assert "host_sync" in out.flags
    assert out.samples_ns[0] == pytest.approx(1.05 * MS, rel=0.01)


def hosted(late: Callable[[int], float]) -> Measurement:
    """A call of 6 ms on a machine that takes `late(i)` ns more to queue call i."""
    engine, calls = FakeEngine(), itertools.count()

    def launch(index: int) -> None:
        engine.kernel(Kernel(6 * MS, host=300 * US + late(next(calls))))

    return measure([Candidate("a", launch, 2)], method_for("burst", GPU, "normal"), Limits(), engine, lambda *_: None)[
        "a"
    ]


def test_a_call_that_returns_long_before_the_device_is_done_is_never_taken_to_wait_for_it() -> None:
    out = hosted(lambda i: 250 * US * (i - 10) if 10 <= i < 17 else 0)  # later and later while it is warmed up

    assert out.flags == set()
    assert out.samples_ns == [pytest.approx(6 * MS)] * out.n


def test_a_host_that_is_late_for_some_samples_is_said_and_none_is_discarded() -> None:
    out = hosted(lambda i: 4 * MS if i > 20 and i % 8 == 0 else 0)

    assert out.flags == {"host_late"}
    assert out.n == 30
    assert sorted(out.samples_ns)[15] == pytest.approx(6 * MS)
    assert max(out.samples_ns) > 7 * MS


@pytest.mark.parametrize("side", [200 * US, 5 * MS])
def test_work_on_another_stream_is_an_error(side: float) -> None:
    out = run(FakeEngine(), {"cheat": Kernel(20 * US, side=side), "honest": Kernel(1 * MS)})

    assert out["cheat"].error is not None
    assert out["cheat"].error.startswith("other stream")
    assert out["cheat"].kept is None
    assert out["honest"].error is None
    assert out["honest"].n == 30


def test_one_late_return_of_a_sync_is_not_taken_for_another_stream() -> None:
    engine = FakeEngine()
    syncs = [0]
    plain = engine.synchronize

    def late_once() -> None:
        plain()
        syncs[0] += 1
        if syncs[0] % 7 == 0:
            engine.host += 2 * MS

    engine.synchronize = late_once  # type: ignore[method-assign]
    [out] = run(engine, {"a": Kernel(1 * MS)}).values()

    assert out.error is None


def test_a_slow_sync_of_the_host_is_not_work_on_another_stream() -> None:
    engine = FakeEngine()
    plain = engine.synchronize

    def slow() -> None:
        plain()
        engine.host += 120 * US

    engine.synchronize = slow  # type: ignore[method-assign]
    out = run(engine, {"honest": Kernel(20 * US), "cheat": Kernel(20 * US, side=200 * US)})

    assert out["honest"].error is None
    assert (out["cheat"].error or "").startswith("other stream")


def test_one_hiccup_of_the_host_does_not_lengthen_every_later_spin() -> None:
    engine, calls = FakeEngine(), [0]

    def launch(index: int) -> None:
        calls[0] += 1
        engine.kernel(Kernel(1 * MS, host=3 * MS if calls[0] in (5, 15) else 20 * US))

    [out] = measure(
        [Candidate("a", launch, 2)], method_for("burst", GPU, "normal"), Limits(), engine, lambda *_: None
    ).values()

    assert out.t_host_ns == pytest.approx(20 * US, rel=0.2)
    assert "host_sync" not in out.flags


def test_work_on_another_stream_is_seen_though_the_host_was_slow_once() -> None:
    engine, launches = FakeEngine(), [0]

    def host() -> float:
        launches[0] += 1
        return 5 * MS if launches[0] == 1 else 20 * US

    [out] = run(engine, {"a": Kernel(5 * US, side=1 * MS, host=host)}).values()

    assert (out.error or "").startswith("other stream")
