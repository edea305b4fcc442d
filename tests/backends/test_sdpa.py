"""The SDPA backends: forced alone, right on a CPU, honest about what CUDA's kernels refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabench_backends import sdpa
from plain_attention import CASES, CPU, check

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
