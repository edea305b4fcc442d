"""How far off an output may be, in units of what rounding allows: the numbers of the verdict, in one place."""

from __future__ import annotations

from fabench.names import Accuracy

MAX_RHO, RMS_RHO, MAX_EL, WARN_RHO = 4.0, 1.25, 16.0, 3.0
FP32_FACTOR = 2.0
"""fp32 with TF32 off may have this many times as much."""
RIGHT = f"right up to {MAX_RHO:g}, in fp32 {MAX_RHO * FP32_FACTOR:g}"
"""The limit of max rho in words."""


def limits(dtype: str, accuracy: Accuracy) -> tuple[float, float, float]:
    """Largest (max rho, rms rho, max el) of a passing tensor."""
    factor = FP32_FACTOR if dtype == "fp32" and accuracy != "A-tf32" else 1.0
    return MAX_RHO * factor, RMS_RHO * factor, MAX_EL * factor
