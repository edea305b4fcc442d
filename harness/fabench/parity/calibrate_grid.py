"""The cases of a calibration, in an order of which every beginning is a fair sample. No torch here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from fabench.case import Case
from fabench.names import Inputs
from fabench.parity.covering import Row, design
from fabench.parity.trial import Trial

LENGTHS = {"cuda": (512, 1024, 2048, 4096), "cpu": (128, 512)}
DISTRIBUTIONS: tuple[Inputs, ...] = ("normal", "std3", "std6", "outliers")
AXES = ("dtype", "N", "d", "mask", "inputs", "seed")


def grid(device_type: str, seeds: int, lengths: Sequence[int] = ()) -> Iterator[Case]:
    """The cases; a budget may cut them anywhere.

    A kernel's dtype, N, d, mask and heads are taken in the order of a covering design, first of every two values, then
    of every three, then as drawn. Each is tried on all distributions in turn: a compiler compiles for it once.
    """
    heads = 4 if device_type == "cuda" else 2
    causal, d, N, dtype = (False, True), (64, 128), lengths or LENGTHS[device_type], ("bf16", "fp16", "fp32")
    for seed, *row in _order([seeds, len(causal), len(d), len(N), len(dtype)]):
        for inputs in DISTRIBUTIONS:
            yield Case(
                1,
                heads,
                N[row[2]],
                N[row[2]],
                d[row[1]],
                heads // 2 if seed % 2 else heads,
                dtype=dtype[row[3]],
                causal=causal[row[0]],
                inputs=inputs,
                seed=seed,
                direction="backward",
            )


def _order(sizes: Sequence[int]) -> list[Row]:
    """Every row once: any beginning holds about as many combinations as so many rows can."""
    rest = list(product(*(range(size) for size in sizes)))
    most = len(rest)
    random.Random(0).shuffle(rest)
    rows: list[Row] = []
    for strength in (2, 3):
        rows = design(sizes, strength, lambda row: True, most, first=rows)
    return list(dict.fromkeys([*rows, *rest]))


def comparable(trial: Trial) -> bool:
    """True if a trial is of a kind that the grid has, so that its rho may be held against a calibration's.

    Other inputs round otherwise: what `one_hot` or `neglse` cost a right kernel, no grid of random inputs shows.
    """
    case = trial.case
    plain = case.scale is None and case.window is None and not case.softcap and case.inputs in DISTRIBUTIONS
    return plain and trial.order != "expanded_kv" and trial.gradient_order != "expanded"


def never(cases: Sequence[Case], measured: Sequence[Case]) -> list[str]:
    """The values of an axis that some of `cases` have and none of `measured`, in words."""
    return [
        word
        for axis in AXES
        for word in dict.fromkeys(_word(axis, case) for case in cases)
        if word not in {_word(axis, case) for case in measured}
    ]


def _word(axis: str, case: Case) -> str:
    if axis == "mask":
        return "causal" if case.causal else "not causal"
    value = case.Nq if axis == "N" else getattr(case, axis)
    return str(value) if axis in ("dtype", "inputs") else f"{axis} {value}"
