"""COUNT: with q = 0 every attended key weighs 1/n, so LSE = ln n, and V = 1 gives O = 1: how many keys are counted?"""

from __future__ import annotations

import math

import torch

from fabench.dtypes import DTYPES
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict, element, shown_pairs
from fabench.parity.largest import first_index
from fabench.parity.probes.mask import indicators
from fabench.parity.probes.one import weight_slack
from fabench.parity.rule import lse_cause

WHOLE = 1e-3
"""How close to a whole number exp(LSE) is where keys are counted wrongly."""


def run(bench: Bench) -> Verdict:
    """LSE where the kernel returns it; else the weights that O shows."""
    case = bench.case
    if not case.Nq:
        return NotApplicable("no queries")
    n = shown_pairs(case, bench.device).sum(1).double()
    (q, k, v, _), *_ = indicators(case, 0, bench.device)
    tensors = bench.laid_out(q, k, v)
    if bench.lse:
        lse = bench.call(tensors, lse=True)["LSE"]
        _check_lse(bench, lse.double(), n)
    ones = bench.laid_out(q, k, torch.ones_like(v))
    total = bench.call(ones)["O"].double()
    one = (n > 0).double()[:, None].expand(total.shape)
    slack = weight_slack(bench, math.log(max(1.0, float(n.max()))))
    _check(bench, total, one, slack, "O with V = 1")
    weights = bench.call(tensors)["O"].double() * n.clamp(min=1.0)[:, None]
    whole = torch.where(weights != 0, 1.0, 0.0)
    # In fp16 1/n is subnormal for n > 16384, and its rounding absolute.
    limit = 2 * slack + float(n.max()) * DTYPES[case.dtype].eta
    _check(bench, weights, whole, limit, "O·n of an indicator")
    return Passed()


def _check_lse(bench: Bench, lse: torch.Tensor, n: torch.Tensor) -> None:
    right = torch.log(n).expand(lse.shape)
    limit = torch.minimum(torch.full_like(n, 1e-5), 0.4 / n.clamp(min=1.0)).expand(lse.shape)
    error = torch.where(right == -torch.inf, torch.where(lse == right, 0.0, torch.inf), (lse - right).abs())
    wrong = ~(error <= limit)
    if not bool(wrong.any()):
        return
    at = first_index(wrong)
    got, expected = float(lse[at]), float(right[at])
    message = f"'LSE' must be ln n = {expected:.6g} with q = 0, got {got:.6g} at b {at[0]}, h {at[1]}, row {at[2]}"
    cause = lse_cause(lse, right.contiguous(), limit.contiguous())
    counted = math.exp(got) if math.isfinite(got) and n[at[-1]] > 0 and got < 700 else math.nan
    # Where all rows have as many keys, a key too many is a constant as well.
    if cause and not (cause.startswith("off by the constant") and abs(counted - _whole(counted)) < WHOLE):
        message += f" ({cause})"
    elif not math.isnan(counted):
        message += f": as if n were {counted:.6g}, not {int(n[at[-1]])}"
    limit_here = float(limit[at])
    raise Failed(message, witness=element("LSE", at, lse, expected, limit_here))


def _whole(x: float) -> float:
    return math.nan if math.isnan(x) else float(round(x))


def _check(bench: Bench, got: torch.Tensor, right: torch.Tensor, limit: float, what: str) -> None:
    wrong = ~((got - right).abs() <= limit)
    if bool(wrong.any()):
        at = first_index(wrong)
        n = float(right[at])
        raise Failed(
            f"{what} is {float(got[at]):.6g} and must be {n:g} at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}: "
            "keys are counted that are not there, or left out",
            witness=element("O", at, got, n, limit),
        )
