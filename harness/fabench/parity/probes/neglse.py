"""NEGLSE: all logits far below -88.7, where exp of an unshifted score is 0: LSE about -120, and about -6e4.

What it breaks: tail keys that are zero-filled instead of masked (exp(0 - LSE) is inf in the backward pass), a finite
number in the place of -inf, a running maximum that starts at 0 or is stored clamped.
"""

from __future__ import annotations

import torch

from fabench.inputs import Tensors
from fabench.parity.bench import Bench, Failed, NotApplicable, Verdict, allowing
from fabench.parity.largest import first_index
from fabench.parity.probes import rho
from fabench.parity.rule import judge

VERY_NEGATIVE_NATS = -6.0e4


def run(bench: Bench) -> Verdict:
    """The rule on inputs near -120 nats (the case's distribution is `neglse`), then every score exactly -6e4."""
    case = bench.case
    if not case.softmax_scale or case.softcap:
        return NotApplicable("scale 0 or softcap keeps the scores small")
    verdict = rho.run(bench)
    if case.dtype != "fp16":
        _very_negative(bench)
    return verdict


def _very_negative(bench: Bench) -> None:
    """Q = e_0 and K = (-6e4/scale) e_0: all scores are one number, so O, dV and dK are those of q = 0."""
    case, t = bench.case, bench.tensors
    q, k = torch.zeros_like(t.q), torch.zeros_like(t.k)
    q[..., 0] = 1.0
    k[..., 0] = VERY_NEGATIVE_NATS / case.softmax_scale
    tensors = Tensors(q, k, t.v, t.dO)
    outputs = bench.call(tensors, backward=bench.backward)
    when = f"with every score {VERY_NEGATIVE_NATS:g}: "
    for name, x in outputs.items():
        if not bool(torch.isfinite(x).all()):
            at = first_index(~torch.isfinite(x))
            raise Failed(f"{when}'{name}' has {float(x[at]):g} at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}")
    # The common score cancels in P: a reference of q = 0 has the same O without the score's size in the tolerance. The
    # gradients keep it, for P = exp(S - LSE) inherits the fp32 rounding of an LSE near -6e4, common to the row; so
    # does the O of a kernel that multiplies by exp(S - LSE) instead of dividing by l.
    flat = bench.reference(Tensors(torch.zeros_like(q), k, t.v))
    rounded_lse = 2.0**-24 * abs(VERY_NEGATIVE_NATS) * flat["O"].value.norm(dim=-1)
    bench.judge(allowing(flat, "O", rounded_lse), {"O": outputs["O"]}, tensors, when)
    expected = bench.reference(tensors)
    bench.judge(expected, {name: x for name, x in outputs.items() if name in ("dK", "dV")}, tensors, when)
    if bench.lse:
        lse = bench.call(tensors, lse=True)["LSE"]
        found = judge(case, expected, {"LSE": lse}, bench.accuracy)
        if not found.passed:
            raise Failed(when + found.message)
