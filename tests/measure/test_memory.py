"""Memory of a call on the CPU: the peak, its split, and what cannot be measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fabench.backend import Prepared
from fabench.case import Case
from fabench.cost import extra_memory, score_bytes
from fabench.device import Device
from fabench.inputs import make
from fabench.measure import memory
from fabench.measure.cpu_engine import CpuEngine
from fabench.measure.memory import measure_memory, storage_bytes
from fabench.records import Memory

ENGINE = CpuEngine(Device("cpu", "here"))
SLACK = 64 << 10
"""Small tensors that an operation makes on its way."""


def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v


def measured(call: Any, **fields: Any) -> tuple[Case, Memory]:
    case = Case(**{"batch": 1, "heads": 2, "Nq": 512, "Nk": 512, "d": 32, "dtype": "fp32", **fields})
    return case, measure_memory(case, Prepared(call), make(case, "cpu"), ENGINE, model="standard")


def test_a_forward_is_its_output_and_what_it_holds_meanwhile() -> None:
    case, found = measured(standard)
    S = score_bytes(case)

    assert found.outputs_bytes == case.heads * case.Nq * case.d * 4
    assert found.peak_bytes == pytest.approx(2 * S, abs=found.outputs_bytes + SLACK)
    assert found.workspace_bytes == found.peak_bytes - found.outputs_bytes
    assert found.saved_bytes is None
    assert found.predicted_bytes == extra_memory(case, "standard")


def test_memory_grows_fourfold_for_the_standard_algorithm_when_N_doubles() -> None:
    _, small = measured(standard)
    _, large = measured(standard, Nq=1024, Nk=1024)

    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    assert large.peak_bytes / small.peak_bytes == pytest.approx(4, rel=0.05)


def test_a_backward_counts_what_its_forward_saved() -> None:
    case, found = measured(standard, direction="backward")
    S, O = score_bytes(case), case.heads * case.Nq * case.d * 4

    assert found.outputs_bytes == 3 * O
    assert found.saved_bytes == pytest.approx(S + O, abs=O + SLACK)
    assert found.peak_bytes is not None
    assert found.peak_bytes > found.saved_bytes + found.outputs_bytes
    assert found.peak_bytes == found.saved_bytes + found.outputs_bytes + found.workspace_bytes


def test_both_directions_together_return_O_and_the_gradients() -> None:
    case, found = measured(standard, direction="forward_backward")
    O = case.heads * case.Nq * case.d * 4

    assert found.outputs_bytes == 4 * O
    assert found.saved_bytes == pytest.approx(score_bytes(case), abs=O + SLACK)


def test_a_call_that_returns_its_input_makes_no_output() -> None:
    _, found = measured(lambda q, k, v: v.view_as(v))

    assert (found.peak_bytes, found.outputs_bytes, found.workspace_bytes) == (0, 0, 0)


def test_what_the_profiler_does_not_see_is_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def watch(self, body: Any) -> Any:
            raise RuntimeError("torch.profiler reported no memory events")

    monkeypatch.setattr(memory, "CpuMeter", Blind)
    case, found = measured(standard)

    assert found.peak_bytes is None
    assert found.note == "not measured: torch.profiler reported no memory events"
    assert found.predicted_bytes == extra_memory(case, "standard")


def test_storages_are_counted_once_and_inputs_not_at_all() -> None:
    a, b = torch.zeros(100), torch.zeros(50)

    assert storage_bytes([a, a[10:], (b, b.view(5, 10))]) == 600
    assert storage_bytes([a, b], besides=[b]) == 400
