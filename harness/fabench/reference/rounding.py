"""What each accuracy class rounds: a competent kernel of the class is the fp64 pass with these roundings put in.

A     S, m, l and the accumulators in fp32; P and dS rounded to the dtype before their GEMMs; delta from the rounded O.
A-tf32  inputs, P, dO and dS rounded to tf32, as the tensor cores read fp32.
B     q·scale and S also rounded to the dtype and the softmax taken in it: plain low-precision math.
Errors of fp32 arithmetic itself are not emulated: the rule bounds them (gS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.dtypes import DTYPES, TF32_UNIT
from fabench.names import Accuracy
from fabench.reference.merge import finite

Round = Callable[[torch.Tensor], torch.Tensor]
LARGEST_ERROR = 60.0
"""Nats: further off, exp(S) is any number."""


def exactly(x: torch.Tensor) -> torch.Tensor:
    """No rounding."""
    return x


def to_dtype(dtype: str) -> Round:
    """Round fp64 to the nearest number of `dtype`, kept in fp64."""
    torch_dtype = getattr(torch, DTYPES[dtype].torch_name)
    return lambda x: x.to(torch_dtype).to(torch.float64)


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Round to nearest, ties away, to tf32's 10 fraction bits, kept in fp64."""
    bits = x.to(torch.float32).view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32).to(torch.float64)


@dataclass(frozen=True)
class Model:
    """One pass's roundings. `EXACT` is the specification itself."""

    accuracy: Accuracy | None
    unit: float
    """u of the rule for this class and dtype."""
    operand: Round = exactly
    scaled: Round = exactly
    """Of q·scale, where the scale is folded into q before the GEMM."""
    score: Round = exactly
    P: Round = exactly
    normalised: bool = False
    """P is rounded after the division by l."""
    dP: Round = exactly
    dS: Round = exactly
    out: Round = exactly

    @property
    def score_roundings(self) -> tuple[Round, Round, Round]:
        """Models equal in these have the same scores."""
        return self.operand, self.scaled, self.score


EXACT = Model(None, 0.0)


def model(accuracy: Accuracy, dtype: str) -> Model:
    """The emulated kernel of a class for inputs of `dtype`."""
    rounded = to_dtype(dtype)
    if accuracy == "A":
        return Model(accuracy, DTYPES[dtype].unit, P=rounded, dS=rounded, out=rounded)
    if accuracy == "A-tf32":
        return Model(accuracy, TF32_UNIT, operand=to_tf32, P=to_tf32, dS=to_tf32, out=rounded)
    return Model(
        accuracy,
        DTYPES[dtype].unit,
        scaled=rounded,
        score=rounded,
        P=rounded,
        normalised=True,
        dP=rounded,
        dS=rounded,
        out=rounded,
    )


def score_spread(S: torch.Tensor, P: torch.Tensor, lse: torch.Tensor, case: Case) -> torch.Tensor:
    """(e^δ - 1) / u: how far the relative errors of class B in the scores move each weight P = exp(S - LSE).

    δ is u |S|, and beside it what the errors of all scores do to the row's LSE: u |LSE| (1 - P), for where one key has
    all the weight they cancel. It is linear for all but the largest scores. With a softcap three numbers are rounded on
    the way, and not one.
    """
    unit = DTYPES[case.dtype].unit
    size = torch.hypot(finite(S), (1.0 - P).mul_(finite(lse)[..., None]))
    error = size.mul_(unit * (3**0.5 if case.softcap else 1.0)).clamp_(max=LARGEST_ERROR)
    return torch.expm1(error).div_(unit)
