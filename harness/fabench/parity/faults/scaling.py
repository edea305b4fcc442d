"""Wrong scores: the scale forgotten, doubled, of another dimension, in another base; the softcap forgotten."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from fabench.case import Case
from fabench.parity.faults.dense import Attention, Fault, Problem, fault
from fabench.reference.rounding import to_dtype

FACTORS = (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)
STEP, STEPS, LARGEST_STEP = 1e-3, 4, 0.1
"""Of the fit of a factor of the scale: difference quotient, how often, and how far at a time."""


def faults(case: Case) -> Iterator[Fault]:
    """Other scales than the case's, each with its words."""
    right = case.softmax_scale
    others = {
        "attention without the 1/sqrt(d) scale" if case.scale is None else "attention without the scale": 1.0,
        "attention with the scale applied twice": right * right,
        "attention with 1/d in the place of 1/sqrt(d)": 1.0 / case.d,
        "attention with the scale of dv, 1/sqrt(dv)": case.dv**-0.5,
        "attention that ignores the scale it was given": case.d**-0.5,
        "exp2 of scores that were not multiplied by log2 e": right * math.log(2),
        "exp of scores that were multiplied by log2 e": right * math.log2(math.e),
        "attention with the sign of the scores wrong": -right,
    }
    if case.scale is not None:
        others["attention that multiplies the scale it was given by 1/sqrt(d)"] = right * case.d**-0.5
    padded = 1 << (case.d - 1).bit_length()
    if case.scale is None and padded != case.d:
        others["attention with 1/sqrt(d) of a d padded to a power of two"] = padded**-0.5
    for dtype in ("bf16", "fp16"):
        others[f"attention whose scale is rounded to {dtype}"] = float(
            to_dtype(dtype)(torch.tensor(right, dtype=torch.float64))
        )
    for sentence, scale in others.items():
        if not math.isclose(scale, right, rel_tol=1e-6):
            yield fault("scale", sentence, scale=_constant(scale))
    for factor in FACTORS:
        if right:
            yield fault("scale", f"attention with {factor:g} times the scale", scale=_constant(right * factor))
    if right <= 0 and not case.mask.is_full:
        yield fault("scale", "a kernel that multiplies the mask's -inf by the scale", scores=_scaled_mask)
    if case.softcap:
        yield fault("scale", "attention without the softcap", softcap=lambda self: 0.0)
        yield fault("scale", "attention whose scale is applied after the softcap", scores=_cap_before_scale)
        if not case.mask.is_full:
            words = "attention whose mask is applied before the softcap (masked keys weigh exp(-cap))"
            yield fault("scale", words, scores=_mask_before_cap)
    else:
        yield fault("scale", "attention with K and q that ignore the scores (all weights equal)", scores=_flat)


def _constant(scale: float):  # type: ignore[no-untyped-def]  # a method of Attention
    return lambda self: scale


def _scaled_mask(self: Attention) -> torch.Tensor:
    """0 · -inf is NaN, and a negative scale makes +inf of it."""
    raw = self.queries() @ self.keys.transpose(-1, -2)
    return raw.masked_fill(~self.mask, -torch.inf) * self.scale()


def _cap_before_scale(self: Attention) -> torch.Tensor:
    cap = self.case.softcap
    raw = self.queries() @ self.keys.transpose(-1, -2)
    return (self.scale() * cap * torch.tanh(raw / cap)).masked_fill(~self.mask, -torch.inf)


def _mask_before_cap(self: Attention) -> torch.Tensor:
    cap = self.case.softcap
    return cap * torch.tanh(self.uncapped.masked_fill(~self.mask, -torch.inf) / cap)


def _flat(self: Attention) -> torch.Tensor:
    return torch.zeros_like(self.uncapped).masked_fill(~self.mask, -torch.inf)


def fitted(problem: Problem, got: torch.Tensor, rows: torch.Tensor) -> Iterator[Fault]:
    """The scale that fits `rows` [batch, heads, Nq] of a wrong O best, if it is another one, by a few Newton steps."""
    right, factor = problem.case.softmax_scale, 1.0
    if not right or not bool(torch.isfinite(got[rows]).all()):
        return

    def output(by: float) -> torch.Tensor:
        with_scale = fault("scale", "", scale=_constant(right * by))
        return with_scale.outputs(problem, backward=False)["O"][rows]

    for _ in range(STEPS):
        here = output(factor)
        slope = (output(factor * (1.0 + STEP)) - here) / (factor * STEP)
        size = float(slope.square().sum())
        if not size:
            return
        step = float((slope * (got[rows] - here)).sum()) / size
        factor += max(-LARGEST_STEP, min(LARGEST_STEP, step))
    words = f"{factor:.3g}"
    if words not in {f"{f:g}" for f in (*FACTORS, 1.0)} and factor > 0:
        yield fault("scale", f"attention with {words} times the scale", scale=_constant(right * float(words)))
