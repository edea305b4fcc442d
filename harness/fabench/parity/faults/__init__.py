"""Wrong attentions, one parameterised kind a file: a failing kernel is named by the one it behaves like."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fabench.case import Case
from fabench.parity.faults import empty_rows, gradients, indexing, lses, masks, precision, scaling, softmaxes
from fabench.parity.faults.dense import Attention, Fault, Problem

KINDS = (empty_rows, scaling, masks, indexing, softmaxes, lses, gradients)


def formulas(case: Case) -> Iterator[Fault]:
    """Faults that compute something else: their outputs can be matched row by row."""
    for kind in KINDS:
        yield from kind.faults(case)


def fitted(problem: Problem, got: torch.Tensor, rows: torch.Tensor) -> Iterator[Fault]:
    """Faults whose one number is read off the wrong rows of O."""
    yield from scaling.fitted(problem, got, rows)
    yield from softmaxes.fitted(problem, got, rows)


def roundings(case: Case) -> Iterator[Fault]:
    """Faults that compute the right thing too coarsely: their errors can be correlated."""
    return precision.faults(case)


__all__ = ["Attention", "Fault", "Problem", "fitted", "formulas", "roundings"]
