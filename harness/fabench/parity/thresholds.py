"""How far off an output may be, in units of what rounding explains: the numbers of the verdict and of its names."""

from __future__ import annotations

from fabench.names import Accuracy

MAX_RHO, RMS_RHO, MAX_EL, WARN_RHO = 4.0, 1.25, 16.0, 3.0
FP32_FACTOR = 2.0
"""fp32 with TF32 off may have this many times as much."""
LSE_RHO = 1.0
"""LSE has an absolute tolerance: what its rho is in units of, and at most."""
RIGHT = f"right up to {MAX_RHO:g}, in fp32 without TF32 {MAX_RHO * FP32_FACTOR:g}, of LSE {LSE_RHO:g}"
"""The limit of max rho in words."""

EXPLAINED = 0.98
"""Part of the wrong rows that a fault must explain to name them, each with at most the max rho that passes."""
BETTER = 0.5
"""The fault must be this much closer to the wrong rows than the right answer is: small errors are like many things."""


def limits(dtype: str, accuracy: Accuracy) -> tuple[float, float, float]:
    """Largest (max rho, rms rho, max el) of a passing tensor."""
    factor = FP32_FACTOR if dtype == "fp32" and accuracy != "A-tf32" else 1.0
    return MAX_RHO * factor, RMS_RHO * factor, MAX_EL * factor


def row_limits(tensor: str, dtype: str, accuracy: Accuracy) -> tuple[float, float]:
    """The rho above which a row is wrong by itself, and above which it is one of many that are wrong together."""
    if tensor == "LSE":
        return LSE_RHO, LSE_RHO
    most, together, _ = limits(dtype, accuracy)
    return most, together
