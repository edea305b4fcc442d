"""The CUDA kernels on a GPU against fp64: shapes, masks, strides, repeatability, graphs, torch.compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import cuda_check

from fabench_backends.cuda_flash import v1_ops, v2_ops

pytestmark = pytest.mark.gpu
CASES = cuda_check.CASES
V1_CASES = [case for case in CASES if cuda_check.takes_v1(case)]


def name(case: tuple[Any, ...]) -> str:
    return " ".join(map(str, case)).replace("torch.", "")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_v2_matches_fp64_and_repeats_what_it_declares_repeatable(case: tuple[Any, ...], deterministic: bool) -> None:
    (row,) = cuda_check.check([case], deterministic)
    assert row["ok"], row
    assert "problem" not in row


@pytest.mark.parametrize("case", V1_CASES, ids=name)
def test_v1_matches_fp64_and_repeats_every_bit(case: tuple[Any, ...]) -> None:
    (row,) = cuda_check.check([case], False, v1=True)
    assert row["ok"], row
    assert "problem" not in row


def test_a_captured_graph_replays_on_new_inputs() -> None:
    assert cuda_check.graph()


@pytest.mark.parametrize("attention", [v1_ops.attention, v2_ops.attention])
def test_torch_compile_sees_one_graph(attention: Any) -> None:
    q, k, v = (torch.randn(1, 2, 130, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def double(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * attention(q, k, v, True)

    compiled = torch.compile(double, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), double(q, k, v))
    dO = torch.randn_like(q)
    for got, want in zip(
        torch.autograd.grad(compiled(q, k, v), (q, k, v), dO),
        torch.autograd.grad(double(q, k, v), (q, k, v), dO),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_a_launch_on_another_stream_waits_for_that_stream() -> None:
    q, k, v = (torch.randn(1, 4, 700, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    right = v2_ops.attention(q, k, v, True)
    late = torch.full_like(q, torch.nan)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(q)
        O = v2_ops.attention(late, k, v, True)
    torch.cuda.synchronize()
    assert torch.equal(O, right)


def test_offsets_past_2_to_the_31_are_right() -> None:
    wide = torch.empty(65, 1 << 25, device="cuda", dtype=torch.bfloat16)
    rows = wide.as_strided((1, 2, 65, 64), (0, 64, 1 << 25, 1))
    rows.normal_()
    plain = rows.contiguous()
    assert torch.equal(v2_ops.attention(rows, rows, rows, True), v2_ops.attention(plain, plain, plain, True))


FIRST = """
import torch
from fabench_backends.cuda_flash.{version}_ops import attention
q, k, v = (torch.randn(1, 2, 65, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
out = attention(q, k, v)
out = out[0] if isinstance(out, tuple) else out
torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
torch.cuda.synchronize()
"""
"""Nothing of torch's runs on the GPU in autograd's thread before the kernels do."""


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_first_backward_pass_of_a_process_may_be_ours(version: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST.format(version=version)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
