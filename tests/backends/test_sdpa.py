"""The SDPA backends: forced alone, right on a CPU, honest about what CUDA's kernels refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fabench.case import Case
from fabench.device import Device
from fabench_backends import sdpa
from plain_attention import CASES, CPU, H100, SHAPE, WIDE, check, tensors

WRONG_IN_TORCH = {
    # Its CPU flash kernel masks before it scales, so that -inf becomes NaN (scale 0) or +inf (scale < 0).
    ("FLASH_ATTENTION", "scale 0"),
    ("FLASH_ATTENTION", "negative scale"),
    (None, "scale 0"),
    (None, "negative scale"),
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [sdpa.MATH, sdpa.FLASH, sdpa.AUTO], ids=lambda b: b.name)
def test_what_a_kernel_takes_on_a_cpu_it_computes(backend: sdpa.Sdpa, name: str, direction: str) -> None:
    case = replace(CASES[name], direction=direction)
    if reasons := backend.reasons(case, CPU):
        pytest.skip(f"{backend.name} refuses it: {reasons}")
    if (backend.kernel, name) in WRONG_IN_TORCH:
        with pytest.raises(AssertionError, match="not close"):
            check(backend, case)
        return
    check(backend, case)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("softcap", "softcap 2"),
        ("dv differs", "dv = 24 differs from d = 16"),
        ("no keys", "empty sequence, Nq = 33 and Nk = 0"),
    ],
)
def test_flash_on_a_cpu_gives_the_reason_with_its_numbers(name: str, reason: str) -> None:
    assert sdpa.FLASH.reasons(CASES[name], CPU) == [reason]


BF16 = replace(SHAPE, dtype="bf16")
A100 = Device("cuda", "NVIDIA A100", capability=(8, 0))


@pytest.mark.parametrize(
    ("backend", "device", "case", "reasons"),
    [
        (sdpa.FLASH, H100, replace(BF16, causal=True), []),
        (sdpa.FLASH, H100, SHAPE, ["dtype fp32, takes fp16, bf16"]),
        (sdpa.FLASH, H100, replace(BF16, d=320, dv=320), ["d = 320 > 256"]),
        (sdpa.FLASH, H100, replace(BF16, window=(3, 3)), ["window (3, 3)"]),
        (
            sdpa.FLASH,
            H100,
            replace(WIDE, dtype="bf16", causal=True),
            ["alignment bottom_right with Nq = 9 and Nk = 40, takes only Nq = Nk"],
        ),
        (sdpa.FLASH, Device("cuda", "T4", capability=(7, 5)), BF16, ["compute capability 7.5 < 8.0"]),
        (sdpa.EFFICIENT, H100, replace(WIDE, causal=True), []),
        (sdpa.EFFICIENT, H100, replace(BF16, kv_heads=2), ["kv_heads = 2 differs from heads = 4"]),
        (sdpa.EFFICIENT, H100, replace(BF16, d=20, dv=20), ["d = 20 is not a multiple of 8 in bf16"]),
        (sdpa.EFFICIENT, H100, replace(SHAPE, d=20, dv=20), []),
        (sdpa.EFFICIENT, H100, replace(SHAPE, dv=10), ["dv = 10 is not a multiple of 4 in fp32"]),
        (sdpa.CUDNN, H100, replace(BF16, d=256, dv=256), []),
        (sdpa.CUDNN, A100, replace(BF16, d=192, dv=192), ["d = 192 > 128 on compute capability 8.0, takes it on 9.0"]),
        (sdpa.CUDNN, H100, replace(BF16, Nk=1), ["Nk = 1 < 2"]),
        (sdpa.CUDNN, H100, replace(BF16, Nq=0), ["empty sequence, Nq = 0 and Nk = 33"]),
        (sdpa.MATH, H100, replace(SHAPE, Nk=0, causal=True), []),
        (sdpa.AUTO, H100, replace(SHAPE, softcap=2.0), ["softcap 2"]),
    ],
)
def test_on_cuda_the_reasons_are_those_of_torchs_own_checks(
    backend: sdpa.Sdpa, device: Device, case: Case, reasons: list[str]
) -> None:
    assert backend.reasons(case, device) == reasons


@pytest.mark.parametrize(
    ("backend", "operator"),
    [
        (sdpa.MATH, "aten::_scaled_dot_product_attention_math"),
        (sdpa.FLASH, "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_each_kernel_is_forced_alone(backend: sdpa.Sdpa, operator: str) -> None:
    call = backend.prepare(SHAPE, CPU).call
    q, k, v, _ = tensors(SHAPE)
    with torch.profiler.profile() as profile:
        call(q, k, v)
    attention = {event.key for event in profile.key_averages() if "_scaled_dot_product" in event.key}
    assert attention == {operator}


@pytest.mark.parametrize("backend", [sdpa.EFFICIENT, sdpa.CUDNN], ids=lambda b: b.name)
def test_a_kernel_that_torch_will_not_run_is_a_refusal_never_another_kernel(backend: sdpa.Sdpa) -> None:
    call = backend.prepare(BF16, CPU).call
    with pytest.raises(NotImplementedError, match=f"torch has no {backend.kernel} kernel for this case"):
        call(*tensors(BF16)[:3])


def test_auto_says_what_it_resolved_to() -> None:
    prepared = sdpa.AUTO.prepare(SHAPE, CPU)
    assert prepared.tuned is not None
    assert prepared.tuned() is None
    prepared.call(*tensors(SHAPE)[:3])
    assert prepared.tuned() == {"resolved": "FLASH_ATTENTION"}
    fallen_back = sdpa.AUTO.prepare(replace(SHAPE, dv=24), CPU)
    fallen_back.call(*tensors(replace(SHAPE, dv=24))[:3])
    assert fallen_back.tuned is not None
    assert fallen_back.tuned() == {"resolved": "MATH"}


def test_overrideable_is_for_devices_outside_torchs_tree() -> None:
    assert sdpa.OVERRIDEABLE.unavailable(CPU) == (
        "torch offers it to out-of-tree devices only (xpu, privateuseone), not to cpu"
    )
