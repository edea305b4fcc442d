"""A name for failures that no fault explains and that go away in plain memory: it is the strides. No torch here."""

from __future__ import annotations

from fabench.parity.naming import WEAK_WORDS
from fabench.parity.trial import Result, Trial

STRIDES = "it does not honour every stride"
INPUTS = {
    "sliced": f"its inputs are slices of longer tensors: {STRIDES}",
    "mixed": "q, K and V each have other strides: it reads one of them with the strides of another",
    "odd_strides": f"dims of size 1 have odd strides: {STRIDES}",
    "expanded_kv": f"K and V are expanded over the heads (stride 0): {STRIDES}",
    "offset1": "its inputs begin one element into their storage: it ignores the offset, or takes them for aligned",
    "offset8": "its inputs begin 8 elements into their storage: it ignores the offset",
    "far_rows": "rows lie more than 2^31 elements apart: an offset overflows 32 bits",
    "bshd": f"its inputs are laid out as [batch, N, heads, d]: {STRIDES}",
    "packed": f"its inputs are views of one packed QKV tensor: {STRIDES}",
}
GRADIENT = {
    "transposed": "dO is laid out as [batch, N, heads, dv]",
    "expanded": "dO is expanded (stride 0)",
    "sliced": "dO is a slice of a longer tensor",
}


def of_memory(smallest: Trial, example: Result) -> str | None:
    """What the smallest failing trial says if it needs its inputs, or dO, to lie in memory as they do."""
    diagnosis = example.diagnosis or {}
    looks = any(words in diagnosis.get("fault", "") for words in WEAK_WORDS)
    if example.ending != "failed" or "rho" in diagnosis or (diagnosis.get("named") and not looks):
        return None
    where = INPUTS.get(smallest.order) or INPUTS.get(smallest.case.layout)
    if where is None and smallest.gradient_order in GRADIENT:
        where = f"{GRADIENT[smallest.gradient_order]}: its backward pass does not honour the strides or offset of dO"
    return where and f"it is wrong only where {where}"
