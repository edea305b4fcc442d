"""Scheduling of a measurement, on a device whose clock and kernels the tests set."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest

from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, measure
from fake_engine import MS, US, FakeEngine, Kernel
from measuring import GPU, noisy, run


def test_a_steady_call_is_timed_exactly_and_stops_at_the_first_checkpoint() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(1 * MS)}).values()

    assert out.stop_reason == "ci"
    assert out.n == 30
    assert out.K == 1
    assert out.samples_ns == [pytest.approx(1 * MS)] * 30
    assert out.flags == set()
    assert out.error is None


def test_no_window_holds_more_than_10_ms_of_work_and_the_device_rests_four_times_as_long_as_it_worked() -> None:
    engine = FakeEngine()
    run(engine, {"first": Kernel(1 * MS)})  # learns the canary's cold time
    before = len(engine.journal)
    run(engine, {"a": Kernel(noisy(1 * MS, 0.2))})

    journal = engine.journal[before:]
    sleeps = [i for i, entry in enumerate(journal) if entry[0] == "sleep"]
    assert len(sleeps) > 20
    for last, this in itertools.pairwise(sleeps[1:]):
        (_, _, until), (_, rest_s, now) = journal[last], journal[this]
        busy, spun = now - until, sum(entry[1] for entry in journal[last:this] if entry[0] == "spin")
        assert 0 < spun < busy <= 10.3 * MS  # the last span may be of the slower kind
        assert rest_s * 1e9 >= 0.95 * 4 * (busy - spun)


def test_each_timed_span_is_spin_flush_start_call_end_and_the_host_waits_only_at_the_end_of_a_window() -> None:
    engine = FakeEngine()
    run(engine, {"a": Kernel(1 * MS)})

    names = [entry[0] for entry in engine.journal]
    last = len(names) - 1 - names[::-1].index("flush")
    start = max(i for i in range(last) if names[i] == "sleep")
    window = names[start + 1 :]
    gate_end = window.index("wait")
    assert window[:gate_end].count("spin") == 1
    body = window[gate_end + 2 :]  # after the record that opens the window
    spans = body.count("flush")
    assert spans >= 5
    assert body == ["spin", "flush", "record", "a", "record"] * spans + ["wait"]


def test_candidates_are_interleaved_window_by_window_and_every_second_pass_is_reversed() -> None:
    windows: list[tuple[str, list[float]]] = []
    kernel = lambda: Kernel(noisy(1 * MS, 0.2))  # noqa: E731
    run(FakeEngine(), {"a": kernel(), "b": kernel(), "c": kernel()}, windows=windows)

    order = [name for name, samples in windows if samples]
    assert order[:12] == ["a", "b", "c", "c", "b", "a"] * 2


def test_a_candidate_that_is_done_leaves_the_rotation_and_the_others_go_on() -> None:
    out = run(FakeEngine(), {"steady": Kernel(1 * MS), "noisy": Kernel(noisy(1 * MS, 0.2))})

    assert out["steady"].n == 30
    assert out["noisy"].n == 480
    assert out["noisy"].stop_reason == "seconds"
    assert "unstable" in out["noisy"].flags


def test_the_sampled_time_stops_at_a_checkpoint() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(noisy(5 * MS, 0.2))}).values()

    assert (out.n, out.stop_reason) == (120, "seconds")  # 60 samples are 0.33 s


def test_the_wall_stops_a_row_that_is_slow_to_gather_samples() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(noisy(9 * MS, 0.02))}, limits=Limits(seconds=9.0, wall_s=1.0)).values()

    assert out.stop_reason == "wall"
    assert 15 <= out.n <= 25
    assert out.wall_s >= 1.0


def test_a_call_longer_than_10_ms_is_a_window_by_itself_taken_five_times_and_flagged_hot() -> None:
    engine, windows = FakeEngine(), list[Any]()
    [out] = run(engine, {"a": Kernel(40 * MS)}, windows=windows).values()

    assert (out.n, out.stop_reason) == (5, "n_min")
    assert out.flags == {"hot"}
    assert [len(samples) for _, samples in windows if samples] == [1] * 5
    assert out.derived.idle_s == pytest.approx(0.04, rel=0.03)


def test_a_call_longer_than_40_ms_rests_as_long_as_it_took() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(300 * MS)}).values()

    assert out.derived.idle_s == pytest.approx(0.3, rel=0.01)


def test_a_call_longer_than_half_a_second_is_warmed_up_by_one_call() -> None:
    engine = FakeEngine()
    run(engine, {"a": Kernel(700 * MS)})

    assert sum(entry[0] == "a" for entry in engine.journal) == 1 + 1 + 5  # estimate, warm-up, samples


def test_warm_up_goes_on_until_three_windows_agree() -> None:
    engine, calls = FakeEngine(), [0]

    def settling() -> float:
        calls[0] += 1
        return 1 * MS * max(1.0, 1.6 - 0.01 * calls[0])

    [out] = run(engine, {"a": Kernel(settling)}).values()

    assert out.samples_ns == [pytest.approx(1 * MS)] * 30
    assert "unstable" not in out.flags


def test_warm_up_gives_up_after_a_second_and_a_half_and_says_so() -> None:
    engine, calls = FakeEngine(), [0]

    def drifting() -> float:
        calls[0] += 1
        return 1 * MS * 1.002 ** calls[0]

    windows: list[Any] = []
    [out] = run(engine, {"a": Kernel(drifting)}, windows=windows).values()

    assert "unstable" in out.flags
    warm_ups = [samples for _, samples in windows if not samples]
    assert 25 <= len(warm_ups) <= 45


def test_inputs_rotate_through_all_sets_without_starting_over() -> None:
    engine = FakeEngine()
    run(engine, {"a": Kernel(1 * MS)}, rotation=4)

    indices = [entry[1] for entry in engine.journal if entry[0] == "a"]
    assert indices == [i % 4 for i in range(len(indices))]


def test_a_short_call_is_repeated_until_the_timed_span_is_50_us_and_rotates_within_it() -> None:
    [out] = run(FakeEngine(), {"a": Kernel(8 * US, host=3 * US)}).values()

    assert out.K == 7
    assert out.samples_ns[0] == pytest.approx(8 * US, rel=0.02)
    assert out.derived.loops == 7


@pytest.mark.parametrize("regime", ["burst", "graph", "sustained", "cpu"])
def test_a_candidate_measured_like_an_older_row_takes_its_K_and_n(regime: Any) -> None:
    engine = FakeEngine()
    candidate = Candidate("a", engine.launcher("a", Kernel(80 * US)), 3, like=(9, 17))
    measured = measure([candidate], method_for(regime, GPU, "normal"), Limits(), engine, lambda *_: None)

    assert (measured["a"].K, measured["a"].n) == (9, 17)


def test_a_window_waits_until_the_canary_has_recovered() -> None:
    engine = FakeEngine()
    run(engine, {"first": Kernel(1 * MS)})
    hot_until = engine.host + 1.2e9
    engine.gemm_ns = lambda e: 330 * US if e.host < hot_until else 300 * US

    [out] = run(engine, {"a": Kernel(lambda: 1.1 * MS if engine.host < hot_until else 1 * MS)}).values()

    assert out.samples_ns == [pytest.approx(1 * MS)] * 30
    assert "drift" not in out.flags
    assert out.idle_s > 1.0


def test_a_card_that_does_not_recover_in_three_seconds_gets_a_new_baseline_and_the_flag_drift() -> None:
    engine = FakeEngine()
    run(engine, {"first": Kernel(1 * MS)})
    engine.gemm_ns = lambda e: 330 * US
    before = engine.host

    out = run(engine, {"a": Kernel(1.1 * MS), "b": Kernel(1.1 * MS)})

    assert "drift" in out["a"].flags
    assert "drift" in out["b"].flags
    assert engine.cold.gate_ns == pytest.approx(330 * US)
    assert 3e9 < engine.host - before < 8e9  # it waited once, not before every window


def test_a_card_that_was_taken_to_be_cold_while_hot_gets_a_faster_baseline_without_waiting() -> None:
    engine = FakeEngine(gemm_ns=lambda e: 330 * US)
    run(engine, {"first": Kernel(1 * MS)})
    engine.gemm_ns = lambda e: 300 * US

    [out] = run(engine, {"a": Kernel(1 * MS)}).values()

    assert engine.cold.gate_ns == pytest.approx(300 * US)
    assert "drift" not in out.flags


def test_a_call_near_the_launch_floor_is_flagged_short() -> None:
    out = run(FakeEngine(), {"short": Kernel(15 * US), "long": Kernel(25 * US)}, null_ns=2 * US)

    assert out["short"].flags == {"short"}
    assert out["long"].flags == set()


def test_samples_stream_out_as_they_are_taken() -> None:
    windows: list[tuple[str, list[float]]] = []
    out = run(FakeEngine(), {"a": Kernel(1 * MS), "b": Kernel(2 * MS)}, windows=windows)

    for name, measurement in out.items():
        assert [s for n, samples in windows if n == name for s in samples] == measurement.samples_ns
    assert all(len(samples) * 2 * MS <= 10 * MS for name, samples in windows if name == "b")


def test_one_timed_output_is_kept_with_its_input_set_and_every_sample_can_be_it() -> None:
    kept = set()
    for seed in range(10):
        engine = FakeEngine()
        [out] = run(engine, {"a": Kernel(1 * MS)}, rotation=3, seed=seed).values()
        assert out.kept is not None
        index, output = out.kept
        assert output == f"a on {index}"
        kept.add(index)
    assert kept == {0, 1, 2}


def test_a_launch_that_raises_ends_its_own_candidate_and_no_other() -> None:
    engine, calls = FakeEngine(), [0]

    def broken(index: int) -> None:
        calls[0] += 1
        if calls[0] > 25:
            raise MemoryError("no more")
        engine.kernel(Kernel(1 * MS))

    method = method_for("burst", GPU, "normal")
    candidates = [Candidate("broken", broken, 2), Candidate("fine", engine.launcher("fine", Kernel(1 * MS)), 2)]
    out = measure(candidates, method, Limits(), engine, lambda *_: None)

    assert out["broken"].error == "MemoryError: no more"
    assert isinstance(out["broken"].failure, MemoryError)
    assert out["broken"].kept is None
    assert out["fine"].n == 30


def test_a_lost_device_ends_the_measurement_with_its_own_error() -> None:
    engine = FakeEngine()

    def faulty(index: int) -> None:
        engine.lost = RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure([Candidate("a", faulty, 1)], method_for("burst", GPU, "normal"), Limits(), engine, lambda *_: None)
    assert gc.isenabled()


def test_the_garbage_collector_is_off_in_every_launch_and_on_again_afterwards() -> None:
    engine, seen = FakeEngine(), set()

    def launch(index: int) -> None:
        seen.add(gc.isenabled())
        engine.kernel(Kernel(1 * MS))

    measure([Candidate("a", launch, 2)], method_for("burst", GPU, "normal"), Limits(), engine, lambda *_: None)

    assert seen == {False}
    assert gc.isenabled()


def test_idle_time_is_charged_to_the_call_that_owed_it() -> None:
    out = run(FakeEngine(), {"hot": Kernel(500 * MS), "quick": Kernel(noisy(1 * MS, 0.2))})

    assert out["hot"].idle_s > 2.0
    assert out["quick"].stop_reason == "seconds"
    assert out["quick"].idle_s < 0.12 * (480 / 5) + 1


def test_telemetry_spans_cover_the_sampling_windows_only() -> None:
    windows: list[Any] = []
    [out] = run(FakeEngine(), {"a": Kernel(1 * MS)}, windows=windows).values()

    assert len(out.spans_s) == sum(bool(samples) for _, samples in windows)
    assert all(0 < end - start < 0.012 for start, end in out.spans_s)


def test_enter_is_called_before_each_stretch_of_launches() -> None:
    engine = FakeEngine()
    candidate = Candidate("a", engine.launcher("a", Kernel(1 * MS)), 2, enter=lambda: engine.journal.append(("enter",)))
    measure([candidate], method_for("burst", GPU, "normal"), Limits(), engine, lambda *_: None)

    names = [entry[0] for entry in engine.journal if entry[0] in ("enter", "a", "sleep")]
    for before, after in itertools.pairwise(names):
        assert not (before == "sleep" and after == "a")
