"""The Triton kernels on a GPU against fp64: every configuration, and shapes, masks, strides and dtypes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

import triton_check


def name(case: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in case.items())


@pytest.mark.gpu
@pytest.mark.parametrize("case", triton_check.configuration_cases() + triton_check.shape_cases(), ids=name)
def test_the_kernels_match_fp64(case: dict[str, Any]) -> None:
    _, errors, _ = triton_check.check(case)
    assert max(errors.values()) <= 1.0, f"times the bound: {errors}"
