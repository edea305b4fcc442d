"""The in-repo kernels on a card that is not the current one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fabench_backends.cuda_flash import v1_ops, v2_ops
from fabench_backends.triton_flash import api

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("attention", [v1_ops.attention, v2_ops.attention, api.attention])
def test_a_call_runs_where_its_tensors_are_and_leaves_the_current_card_as_it_was(attention: Any) -> None:
    torch.manual_seed(0)
    first = [torch.randn(2, 4, 300, 64, device="cuda:0", dtype=torch.bfloat16) for _ in range(4)]
    results = []
    for device in ("cuda:0", "cuda:1"):
        q, k, v, dO = (tensor.detach().to(device) for tensor in first)
        inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
        O = attention(*inputs, True)
        results.append([O, *torch.autograd.grad(O, inputs, dO)])
        assert torch.cuda.current_device() == 0
        assert all(tensor.device == torch.device(device) for tensor in results[-1])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(there.cpu(), here.cpu(), rtol=2e-2, atol=2e-2)
