"""The naive backend against the definition of attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fabench.case import Case
from fabench_backends.naive import NAIVE
from plain_attention import CASES, CPU, SHAPE, check, tensors


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_naive_computes_every_case(name: str, direction: str) -> None:
    case = replace(CASES[name], direction=direction)
    assert NAIVE.reasons(case, CPU) == []
    check(NAIVE, case)


@pytest.mark.parametrize(("layout", "copied"), [("bhsd", False), ("bshd", True), ("packed", True)])
def test_a_layout_that_cannot_be_viewed_is_reported_as_copied(layout: str, copied: bool) -> None:
    case = replace(SHAPE, layout=layout)
    prepared = NAIVE.prepare(case, CPU)
    assert not prepared.copied
    q, k, v, _ = tensors(case)
    prepared.call(q, k, v)
    assert prepared.copied is copied


def test_grouped_heads_are_not_expanded_in_memory() -> None:
    case = replace(SHAPE, kv_heads=2)
    prepared = NAIVE.prepare(case, CPU)
    prepared.call(*tensors(case)[:3])
    assert not prepared.copied


def test_the_scale_costs_no_pass_over_the_scores() -> None:
    case = Case(1, 2, 64, 64, 8, dtype="fp32")
    call = NAIVE.prepare(case, CPU).call
    q, k, v, _ = tensors(case)
    with torch.profiler.profile() as profile:
        call(q, k, v)
    names = {event.key for event in profile.key_averages()}
    assert "aten::baddbmm" in names
    assert not names & {"aten::mul", "aten::mul_", "aten::div", "aten::masked_fill_"}


def test_inputs_are_not_changed() -> None:
    q, k, v, _ = tensors(SHAPE)
    before = [x.clone() for x in (q, k, v)]
    NAIVE.prepare(replace(SHAPE, causal=True, softcap=1.0), CPU).call(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_a_scale_of_zero_reads_no_uninitialised_memory(dtype: str) -> None:
    case = Case(1, 12, 2, 2, 192, kv_heads=4, dtype=dtype, causal=True, scale=0.0, layout="bshd", direction="backward")
    for _ in range(8):
        junk = [torch.full((size,), float("nan")).to(torch.bfloat16) for size in range(1, 2000, 7)]
        del junk
        check(NAIVE, case)
