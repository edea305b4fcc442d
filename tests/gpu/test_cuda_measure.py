"""The CUDA engine on hardware: what it times, and the tricks that it must see through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def engine() -> Any:
    from fabench.environment import resolve
    from fabench.measure.engine import engine_for

    return engine_for(resolve("cuda"))


def timed(engine: Any, launch: Callable[[int], Any], regime: Any = "burst", rotation: int = 2) -> Any:
    from fabench.measure.method import method_for
    from fabench.measure.sampling import Candidate, Limits, measure

    method = method_for(regime, engine.device, "normal")
    limits = Limits(seconds=0.1, half_width=0.01)
    return measure([Candidate("it", launch, rotation)], method, limits, engine, lambda *_: None)["it"]


def test_a_spin_lasts_as_long_as_asked(engine: Any) -> None:
    out = timed(engine, lambda i: engine.spin(2e6))

    assert sorted(out.samples_ns)[out.n // 2] == pytest.approx(2e6, rel=0.05)
    assert out.error is None
    assert "host_sync" not in out.flags


def test_the_profiler_agrees_with_the_events_and_names_the_kernel(engine: Any) -> None:
    from fabench.measure.kernels import profile_kernels

    launch = engine.gemm("bf16", 4096)
    out = timed(engine, lambda i: launch())
    report = profile_kernels(launch, engine)

    assert report is not None
    assert len(report.names) == 1
    assert report.other_streams == []
    assert sorted(out.samples_ns)[out.n // 2] == pytest.approx(report.span_ns, rel=0.1)


def test_work_on_another_stream_is_caught_by_the_clock_and_by_the_profiler(engine: Any) -> None:
    import torch

    from fabench.measure.kernels import profile_kernels

    side, gemm = torch.cuda.Stream(), engine.gemm("bf16", 8192)

    def sneaky(index: int) -> None:
        with torch.cuda.stream(side):
            gemm()

    out = timed(engine, sneaky)
    report = profile_kernels(lambda: sneaky(0), engine)

    assert out.error is not None
    assert out.error.startswith("other stream")
    assert report is not None
    assert report.other_streams


def test_the_default_stream_is_another_stream(engine: Any) -> None:
    import torch

    gemm = engine.gemm("bf16", 8192)

    def legacy(index: int) -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            gemm()

    assert (timed(engine, legacy).error or "").startswith("other stream")


def test_a_call_that_waits_for_the_device_is_flagged_host_sync(engine: Any) -> None:
    gemm = engine.gemm("bf16", 4096)
    out = timed(engine, lambda i: gemm()[0, 0].item())

    assert "host_sync" in out.flags
    assert out.error is None


def test_a_graph_replays_all_input_sets_and_reads_new_values_in_the_same_buffers(engine: Any) -> None:
    import torch

    sets = [torch.full((256, 256), float(i), device="cuda") for i in range(3)]
    out = timed(engine, lambda i: sets[i] * 2, "graph", rotation=3)

    assert out.unsupported is None
    assert out.K % 3 == 0
    assert out.K * sorted(out.samples_ns)[out.n // 2] >= 150e3
    index, kept = out.kept
    assert float(kept[0, 0]) == 2.0 * index
    sets[index].fill_(21.0)
    out.replay.output.fill_(float("nan"))
    out.replay.run()
    engine.synchronize()
    assert float(out.replay.output[0, 0]) == 42.0


def test_a_backward_pass_is_captured_and_timed_in_the_graph_regime(engine: Any) -> None:
    import torch

    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    y = (x * x).sum()
    out = timed(engine, lambda i: torch.autograd.grad(y, x, retain_graph=True), "graph", rotation=1)

    assert out.unsupported is None
    _, (gradient,) = out.kept
    assert torch.equal(gradient, 2 * x.detach())


def test_a_call_that_cannot_be_captured_is_unsupported_in_the_graph_regime(engine: Any) -> None:
    import torch

    a = torch.ones(64, device="cuda")
    out = timed(engine, lambda i: float(a.sum()), "graph")

    assert out.unsupported is not None
    assert "cannot be captured in a CUDA graph" in out.unsupported
    assert timed(engine, lambda i: a + 1, "graph").unsupported is None  # the engine still captures


def test_running_out_of_memory_ends_the_call_and_not_the_process(engine: Any) -> None:
    import torch

    out = timed(engine, lambda i: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))

    assert isinstance(out.failure, torch.OutOfMemoryError)
    assert timed(engine, lambda i: engine.spin(1e6)).error is None


def test_memory_of_the_standard_algorithm_grows_fourfold_and_of_flash_twofold(engine: Any) -> None:
    from fabench.backend import Prepared
    from fabench.case import Case
    from fabench.inputs import make
    from fabench.measure.memory import measure_memory
    from fabench.registry import shipped

    backends = shipped()
    for direction in ("forward", "backward"):
        peaks: dict[str, list[int]] = {"naive": [], "sdpa-flash": []}
        for N in (2048, 4096):
            case = Case(batch=1, heads=8, Nq=N, Nk=N, d=64, direction=direction)  # type: ignore[arg-type]
            for name, found in peaks.items():
                prepared: Prepared = backends[name].prepare(case, engine.device)
                memory = measure_memory(case, prepared, make(case, "cuda"), engine)
                assert memory.peak_bytes is not None
                found.append(memory.peak_bytes)
        assert peaks["naive"][1] / peaks["naive"][0] == pytest.approx(4, rel=0.1)
        assert peaks["sdpa-flash"][1] / peaks["sdpa-flash"][0] == pytest.approx(2, rel=0.1)


def test_the_canary_of_a_gpu_is_below_its_peaks_and_above_a_tenth_of_them(engine: Any) -> None:
    from fabench.measure.canary import measure_canary
    from fabench.measure.peaks import limits

    reading, most = measure_canary(engine, ["bf16"], "burst"), limits(engine.device)

    if "bf16" in most.flops:
        assert 0.1 * most.flops["bf16"] < reading.gemm_flops["bf16"] < most.flops["bf16"]
    if most.bandwidth:
        assert 0.1 * most.bandwidth < reading.copy_bandwidth < most.bandwidth
    assert 200 < reading.null_ns < 50_000
