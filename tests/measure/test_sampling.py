"""Scheduling of a measurement, on a device whose clock and kernels the tests set."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from fabench.device import Device
from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fake_engine import MS, US, FakeEngine, Kernel

GPU = Device("cuda", "fake")
CPU = Device("cpu", "fake")


def run(
    engine: FakeEngine,
    kernels: dict[str, Kernel],
    *,
    regime: Any = "burst",
    rotation: int = 3,
    limits: Limits | None = None,
    device: Device = GPU,
    **keywords: Any,
) -> dict[str, Measurement]:
    candidates = [Candidate(name, engine.launcher(name, kernel), rotation) for name, kernel in kernels.items()]
    windows = keywords.pop("windows", [])
    return measure(
        candidates,
        method_for(regime, device, "normal"),
        limits or Limits(),
        engine,
        lambda name, samples: windows.append((name, samples)),
        **keywords,
    )


def noisy(base: float, share: float) -> Callable[[], float]:
    """A duration that alternates around `base`, so that its interval never becomes narrow."""
    state = [0]

    def next_ns() -> float:
        state[0] += 1
        return base * (1 + share * (state[0] % 2))

    return next_ns


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


def test_work_on_another_stream_is_seen_though_the_host_was_slow_once() -> None:
    engine, launches = FakeEngine(), [0]

    def host() -> float:
        launches[0] += 1
        return 5 * MS if launches[0] == 1 else 20 * US

    [out] = run(engine, {"a": Kernel(5 * US, side=1 * MS, host=host)}).values()

    assert (out.error or "").startswith("other stream")


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


def test_on_a_cpu_there_is_no_flush_spin_canary_or_idle_time_and_samples_loop_for_100_us() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None, device_type="cpu", resolution_ns=50.0)
    [out] = run(engine, {"a": Kernel(7 * US, host=0.0)}, regime="cpu", device=CPU).values()

    assert out.K == 15
    assert {entry[0] for entry in engine.journal} == {"a", "record", "wait"}
    assert out.t_host_ns is None
    assert (out.n, out.stop_reason) == (30, "ci")


def test_a_window_on_a_cpu_opens_with_an_untimed_span_that_warms_the_caches() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None)
    last = [""]

    def launcher(name: str) -> Callable[[int], None]:
        def launch(index: int) -> None:
            cold = last[0] != name
            last[0] = name
            engine.kernel(Kernel(4 * MS if cold else 2 * MS, host=0.0))

        return launch

    candidates = [Candidate(name, launcher(name), 2) for name in "ab"]
    out = measure(candidates, method_for("cpu", CPU, "normal"), Limits(), engine, lambda *_: None)

    for measurement in out.values():
        assert measurement.samples_ns == [pytest.approx(2 * MS, rel=1e-3)] * 30


def test_a_coarse_timer_asks_for_longer_samples_on_a_cpu() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None, resolution_ns=1 * US)
    [out] = run(engine, {"a": Kernel(100 * US, host=0.0)}, regime="cpu", device=CPU).values()

    assert out.K == 10  # 1000 steps of 1 us


def test_a_long_call_on_a_cpu_follows_the_stopping_rule_from_five_samples() -> None:
    engine = FakeEngine(asynchronous=False, gate_dtype=None)
    [out] = run(engine, {"a": Kernel(noisy(20 * MS, 0.5), host=0.0)}, regime="cpu", device=CPU).values()

    assert (out.n, out.stop_reason) == (20, "seconds")
    assert "hot" not in out.flags
