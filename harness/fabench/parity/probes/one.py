"""ONE: with V = 1 every O is 1 whatever P is, within `weight_slack`; and V·2^k gives O·2^k bit by bit."""

from __future__ import annotations

import math

import torch

from fabench.inputs import Tensors, copy_in_order
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict, element
from fabench.parity.largest import first_index

POWER = 3


def run(bench: Bench) -> Verdict:
    """The case's own q and k; V = 1, then V·2^k."""
    case = bench.case
    if not case.Nq:
        return NotApplicable("no queries")
    t = bench.tensors
    ones = Tensors(t.q, t.k, copy_in_order(torch.ones_like(t.v), t.v))
    got = bench.call(ones)["O"].double()
    attended = torch.tensor([bool(case.mask.keys(i)) for i in range(case.Nq)], device=bench.device)
    right = attended.double()[:, None].expand(got.shape)
    lse = bench.expected["LSE"].value
    limit = weight_slack(bench, float(lse[torch.isfinite(lse)].abs().max()) if bool(torch.isfinite(lse).any()) else 0.0)
    wrong = ~((got - right).abs() <= limit)
    if bool(wrong.any()):
        at = first_index(wrong)
        raise Failed(
            f"with V = 1, O must be {float(right[at]):g} within {limit:.2g}, got {float(got[at]):.7g} "
            f"at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}: the weights do not sum to 1",
            witness=element("O", at, got, float(right[at]), limit),
            tensors=ones,
        )
    return _powers(bench)


def weight_slack(bench: Bench, lse: float) -> float:
    """How far a sum of weights may be from 1: an ulp in 16 bits; in fp32 what summing Nk terms leaves, and what the
    rounding of LSE (`lse` is the largest |LSE|) does to P = exp(S - LSE).

    Sums of equal weights round the same way again and again: torch's fp32 softmax comes to 4.1 sqrt(N) 2^-24.
    """
    if bench.dtype != torch.float32:
        return bench.unit
    return (8 * math.sqrt(max(1, bench.case.Nk)) + 2 * lse) * 2.0**-24


def _powers(bench: Bench) -> Verdict:
    """O of V·2^k is O·2^k bitwise: nothing may depend on the size of V, if two equal calls agree at all."""
    t = bench.tensors
    if bench.case.inputs in ("near_overflow", "subnormal"):
        return Passed()
    first, again = bench.call(t)["O"], bench.call(t)["O"]
    if not torch.equal(first, again):
        return Passed(note="two equal calls differ, so that V·2^k cannot be compared bit by bit")
    larger = copy_in_order(t.v * 2.0**POWER, t.v)
    scaled = bench.call(Tensors(t.q, t.k, larger))["O"].double()
    right = first.double() * 2.0**POWER
    # What rounded to the smallest normal number may have done so with a subnormal's few digits.
    wrong = (scaled != right) & (first.abs() > torch.finfo(bench.dtype).smallest_normal)
    if bool(wrong.any()):
        at = first_index(wrong)
        limit = abs(float(right[at])) * bench.unit
        raise Failed(
            f"V·{2**POWER} must give O·{2**POWER} bit by bit, got {float(scaled[at]):.9g} instead of "
            f"{float(right[at]):.9g} at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}",
            witness=element("O", at, scaled, float(right[at]), limit),
        )
    return Passed()
