"""Measurements whose calls are replayed from a CUDA graph."""

from __future__ import annotations

import pytest

from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, measure
from fake_engine import US, FakeEngine, Kernel
from measuring import GPU, run


@pytest.mark.parametrize(("rotation", "K"), [(12, 48), (39, 78), (40, 40), (500, 40)])
def test_a_graph_holds_200_us_of_calls_each_on_a_set_of_its_own_or_on_all_sets_equally_often(
    rotation: int, K: int
) -> None:
    engine = FakeEngine()
    [out] = run(engine, {"a": Kernel(5 * US)}, regime="graph", rotation=rotation).values()

    assert out.K == out.derived.loops == K
    assert out.samples_ns[0] == pytest.approx(5 * US)
    assert out.replay is not None
    assert out.kept == (out.replay.index, ("copy of", out.replay.output))
    assert out.replay.output == f"a on {out.replay.index}"
    assert ("replay", K) in engine.journal


def test_a_graph_is_captured_again_if_a_replay_shows_that_a_call_takes_another_time() -> None:
    engine, launches = FakeEngine(), [0]

    def slow_at_first() -> float:
        launches[0] += 1
        return 50 * US if launches[0] <= 10 else 5 * US

    [out] = run(engine, {"a": Kernel(slow_at_first)}, regime="graph", rotation=500).values()

    assert abs(out.K - 40) <= 4
    assert [entry[1] for entry in engine.journal if entry[0] == "replay"][:3] == [4, 4, out.K]


def test_what_cannot_be_captured_is_unsupported_in_the_graph_regime_with_the_reason() -> None:
    out = run(FakeEngine(), {"bad": Kernel(5 * US, syncs=True), "good": Kernel(5 * US)}, regime="graph")

    assert out["bad"].unsupported is not None
    assert "cannot be captured in a CUDA graph" in out["bad"].unsupported
    assert "capturing" in out["bad"].unsupported
    assert out["bad"].samples_ns == []
    assert out["good"].n == 30


def test_running_out_of_memory_during_a_capture_is_that_and_not_a_refusal() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    engine = FakeEngine()

    def launch(index: int) -> None:
        if engine._captured is not None:
            raise OutOfMemoryError("CUDA out of memory")
        engine.kernel(Kernel(5 * US), "a", index)

    [out] = measure(
        [Candidate("a", launch, 2)], method_for("graph", GPU, "normal"), Limits(), engine, lambda *_: None
    ).values()

    assert out.unsupported is None
    assert isinstance(out.failure, OutOfMemoryError)


def test_a_graph_of_short_calls_is_never_flagged_short() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(5 * US)}, regime="graph", null_ns=2 * US).values()

    assert "short" not in out.flags
