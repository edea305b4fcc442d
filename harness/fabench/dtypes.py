"""The number formats, by the names used everywhere: size in bytes, unit roundoff and underflow floor. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """One number format. `torch_name` is its attribute on the torch module."""

    name: str
    torch_name: str
    bytes: int
    unit: float
    """Unit roundoff u: half the distance from 1 to the next number (Higham 2002, §2.1)."""
    eta: float
    """Underflow floor: half the smallest subnormal, or where exp flushes to zero if that is larger."""


DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        DType("fp16", "float16", 2, 2.0**-11, 2.0**-25),
        DType("bf16", "bfloat16", 2, 2.0**-8, 2.0**-126),
        DType("fp32", "float32", 4, 2.0**-24, 2.0**-126),
    )
}
"""The dtypes a case can have."""

RESERVED_DTYPES = ("fp8_e4m3",)
"""Names kept for later: refused with a sentence that says so."""

TF32_UNIT = 2.0**-11
"""Unit roundoff of tf32, the tensor cores' mode for fp32 inputs."""
