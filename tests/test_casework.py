"""A case's work inside a worker, on the CPU: a graph that is replayed is verified on inputs that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fabench import inputs
from fabench.backend import Prepared
from fabench.case import Case
from fabench.casework import CaseWork
from fabench.device import Device
from fabench.function_backend import bare
from fabench.jobs import Job, Options
from fabench.measure.cpu_engine import CpuEngine
from fabench.measure.graph import Replay
from fabench.measure.track import Measurement
from fabench.outcome import Failure
from fabench.protocol import Board
from fabench.reference import compute
from fabench.settings import Settings

CPU = Device("cpu", "here", free_bytes=1 << 30)
TENSORS = {"forward": ["O"], "backward": ["dQ", "dK", "dV"], "forward_backward": ["O", "dQ", "dK", "dV"]}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@contextmanager
def case_work(direction: str) -> Iterator[tuple[CaseWork, Job, Any]]:
    """A case's work, a job that is prepared, and the case's reference."""
    case = Case(batch=1, heads=2, Nq=32, Nk=32, d=16, dtype="fp32", direction=direction)  # type: ignore[arg-type]
    tensors = inputs.make(case, "cpu")
    board = Board.create()
    try:
        work = CaseWork(
            case,
            CPU,
            CpuEngine(CPU),
            Options(),
            board,
            lambda event: None,
            Settings(),
            tensors,
        )
        job = Job("row", bare(attention), 2, prepared=Prepared(attention))
        yield work, job, compute(case, tensors, accuracy=["A"])
    finally:
        board.close()


def captured(launch: Callable[[int], Any], index: int, *, live: bool) -> Replay:
    """A graph of one call as a CPU can play it: a replay computes anew into the same output, or (not live) is stale."""
    output = launch(index)
    parts = output if isinstance(output, tuple) else (output,)

    def run() -> None:
        fresh = launch(index)
        for part, new in zip(parts, fresh if isinstance(fresh, tuple) else (fresh,), strict=True):
            part.detach().copy_(new.detach())

    return Replay(run if live else lambda: None, index, output)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("direction", TENSORS)
def test_a_replay_that_reads_its_inputs_anew_passes(direction: str, index: int) -> None:
    with case_work(direction) as (work, job, reference):
        launches = work.launches()
        launches.open(job.row_id, job.call)
        before = launches.sets[index].fingerprint()
        replay = captured(launches.launcher(job.row_id), index, live=True)

        work.verify(job, Measurement(replay=replay), launches, reference)

        assert set(job.fields["parity"]) >= set(TENSORS[direction])
        assert launches.sets[index].fingerprint() == before


@pytest.mark.parametrize("direction", TENSORS)
def test_a_replay_that_writes_nothing_is_a_wrong_result(direction: str) -> None:
    with case_work(direction) as (work, job, reference):
        launches = work.launches()
        launches.open(job.row_id, job.call)
        replay = captured(launches.launcher(job.row_id), 0, live=False)

        with pytest.raises(Failure, match="after the inputs changed in place") as caught:
            work.verify(job, Measurement(replay=replay), launches, reference)

        assert caught.value.status == "wrong_result"


@pytest.mark.parametrize("direction", TENSORS)
def test_a_replay_that_repeats_an_old_answer_is_a_wrong_result(direction: str) -> None:
    with case_work(direction) as (work, job, reference):
        launches = work.launches()
        launches.open(job.row_id, job.call)
        replay = captured(launches.launcher(job.row_id), 0, live=False)
        parts = replay.output if isinstance(replay.output, tuple) else (replay.output,)
        kept = [part.detach().clone() for part in parts]

        def repeat() -> None:
            for part, old in zip(parts, kept, strict=True):
                part.detach().copy_(old)

        replay.run = repeat
        with pytest.raises(Failure, match="after the inputs changed in place"):
            work.verify(job, Measurement(replay=replay), launches, reference)


def test_poison_spares_an_output_that_is_an_input() -> None:
    with case_work("forward") as (work, _, _):
        launches = work.launches()
        first = launches.sets[0]

        launches.poison((first.v.transpose(1, 2), own := torch.zeros(3), torch.zeros(1).expand(4)), 0)

        assert not first.v.isnan().any()
        assert own.isnan().all()


def test_what_a_backend_leaves_on_the_device_is_counted_from_before_it_was_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([1000, 1400])
    monkeypatch.setattr("fabench.checking.outside_allocator", lambda engine: next(readings))
    monkeypatch.setattr("fabench.measure.memory.outside_allocator", lambda engine: next(readings))
    with case_work("forward") as (work, job, reference):
        work.checker.check(job, work.tensors, reference)

    assert job.fields["memory"]["device_delta_bytes"] == 400


@pytest.mark.parametrize(("direction", "forwards"), [("forward", 1), ("backward", 0), ("forward_backward", 1)])
def test_a_backward_answers_for_its_own_kernels_and_not_for_its_forwards(
    direction: str, forwards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return attention(q, k, v)

    def profile(call: Callable[[], Any], engine: Any) -> None:
        calls.clear()
        call()
        call()  # a profiler's first session may be empty
        seen.append(len(calls) / 2)

    seen: list[float] = []
    monkeypatch.setattr("fabench.checking.profile_kernels", profile)
    with case_work(direction) as (work, job, reference):
        job.backend, job.describe = bare(counted), True
        work.checker.check(job, work.tensors, reference)

    assert seen == [forwards]
