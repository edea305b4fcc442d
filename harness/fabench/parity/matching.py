"""Which shipped fault a wrong output behaves like: row by row against what the fault computes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.inputs import Tensors
from fabench.names import Accuracy
from fabench.parity.extent import bad_rows, place, row_rho
from fabench.parity.faults import Fault, Problem, fitted, formulas, roundings
from fabench.parity.thresholds import BETTER, EXPLAINED, row_limits
from fabench.reference import Reference
from fabench.reference.rounding import model

MOST_PAIRS = 1 << 20
"""Faults are dense: larger cases are matched after shrinking."""
PARTIAL = 4.0
"""A fault that does not fit the rows that are right explains the wrong ones only if half of them are this many times as
far off as a right row may be: small errors in some rows are like many things."""
CORRELATED = 0.6
SIZES = (0.4, 2.5)
"""A rounding fault's error may be this much smaller or larger than the kernel's."""


@dataclass(frozen=True)
class Match:
    """A fault that explains a wrong output."""

    fault: str
    """The fault's own words, the same whatever tensor shows it."""
    sentence: str
    """'O matches attention without the 1/sqrt(d) scale'."""
    rho: float
    """Of the wrong rows against the fault's: rms over the rows that it explains."""
    whole: bool
    """The fault also explains the rows that are right."""
    kind: str
    correlation: float | None = None
    """Of the errors, for a loss of precision."""


def matches(
    case: Case, tensors: Tensors, outputs: Mapping[str, torch.Tensor], expected: Reference, accuracy: Accuracy
) -> list[Match]:
    """The faults that explain every wrong tensor, best first; empty if none does or nothing is wrong."""
    if case.batch * case.heads * case.Nq * case.Nk > MOST_PAIRS or expected.sampled:
        return []
    got = {name: expected[name].select(x) for name, x in outputs.items() if name in expected.outputs}
    limits = {name: row_limits(name, case.dtype, accuracy) for name in got}
    bad = {
        name: bad_rows(expected[name], x, expected[name].tolerance[accuracy], limits[name]) for name, x in got.items()
    }
    wrong = {name: rows for name, rows in bad.items() if bool(rows.any())}
    # Gradients of a wrong O are wrong in ways of their own: O alone names the bug. So does O beside its LSE.
    if "O" in wrong:
        wrong = {"O": wrong["O"]}
    lse = {"LSE": wrong.pop("LSE")} if "LSE" in wrong else {}
    if not wrong and not lse:
        return []
    problem = Problem.of(case, tensors)
    near = fitted(problem, got["O"], wrong["O"]) if "O" in wrong else ()
    found: list[Match] = []
    # Where no fault of the backward pass explains the gradients, they may come of the LSE that it reads.
    for these in (wrong, lse):
        if these and not found:
            for fault in itertools.chain(formulas(case), near):
                computed = fault.outputs(problem, backward="O" not in these and these is not lse)
                one = _explains(fault, got, these, computed, expected, accuracy, case.dtype)
                if one is not None:
                    found.append(one)
    of_empty = "O" in wrong and bool(expected["O"].empty[wrong["O"]].all())
    found.sort(key=lambda m: (of_empty and m.kind != "empty", not m.whole, m.rho))
    return found or _precision(case, problem, got, wrong, expected)


def _explains(
    fault: Fault,
    got: Mapping[str, torch.Tensor],
    wrong: Mapping[str, torch.Tensor],
    computed: Mapping[str, torch.Tensor],
    expected: Reference,
    accuracy: Accuracy,
    dtype: str,
) -> Match | None:
    """A match if the fault explains the wrong rows of every wrong tensor, and does not make a right O wrong."""
    squares, count, whole, off = 0.0, 0, True, []
    unit, (close, _) = model(accuracy, dtype).unit, row_limits("O", dtype, accuracy)
    if "O" in got and "O" not in wrong and "O" in computed:
        rho = row_rho(computed["O"].to(got["O"].device), expected["O"].value, expected["O"].tolerance[accuracy])
        if float((rho <= close).double().mean()) < EXPLAINED:
            return None
    for name, rows in wrong.items():
        if name not in computed:
            return None
        theirs, right = computed[name].to(got[name].device), expected[name].value
        tolerance = expected[name].tolerance[accuracy]
        if theirs.dim() == 4:
            # The fault's rows may be much longer than the right ones, and round accordingly.
            length, right_length = theirs.norm(dim=-1), right.norm(dim=-1)
            grown = torch.where(right_length > 0, (length / right_length).clamp(min=1.0), 1.0).nan_to_num(1.0, 1.0)
            length = length.nan_to_num(0.0, 0.0)
            # A row that must be 0 has no tolerance of its own: a few roundings of what is there instead.
            tolerance = tolerance * grown + torch.where(tolerance > 0, unit, 8 * unit + 2.0**-18) * length
        else:  # LSE: a longer one is rounded where it lies
            grown = theirs.abs().clamp(min=1.0) / right.abs().clamp(min=1.0)
            tolerance = tolerance * grown.nan_to_num(1.0, 1.0).clamp(min=1.0)
        rho = row_rho(got[name], theirs, tolerance)
        explained = rho[rows] <= close
        # A fault that hardly differs from the right answer explains nothing.
        explained &= row_rho(theirs, right, tolerance)[rows] > row_limits(name, dtype, accuracy)[1]
        if float(explained.double().mean()) < EXPLAINED:
            return None
        whole &= bool((rho <= close).double().mean() >= EXPLAINED)
        off.append(row_rho(got[name], right, expected[name].tolerance[accuracy])[rows])
        squares += float(rho[rows][explained].square().sum())
        count += int(explained.sum())
    rms = (squares / max(1, count)) ** 0.5
    if not rms <= BETTER * float(torch.cat(off).median()) or (
        not whole and float(torch.cat(off).median()) < PARTIAL * close
    ):
        return None
    what, sentence = _names(list(wrong)), fault.sentence
    if whole:
        words = f"{what} {'match' if len(wrong) > 1 else 'matches'} {sentence}"
    else:
        name = next(iter(wrong))
        where = place(wrong[name], "row" if name in ("O", "dQ") else "key")
        words = f"{what} in {where} {'match' if len(wrong) > 1 else 'matches'} {sentence}"
    return Match(sentence, words, rms, whole, fault.kind)


def _precision(
    case: Case,
    problem: Problem,
    got: Mapping[str, torch.Tensor],
    wrong: Mapping[str, torch.Tensor],
    expected: Reference,
) -> list[Match]:
    """Losses of precision: the kernel's error beside the emulated one."""
    name = "O" if "O" in wrong else next((n for n in wrong if n != "LSE"), None)
    if name is None:
        return []
    right = expected[name].value
    error = got[name] - right
    if not bool(torch.isfinite(error).all()):
        return []
    found = []
    for fault in roundings(case):
        computed = fault.outputs(problem, backward=name != "O")
        theirs = computed[name] - right
        size, own = float(theirs.norm()), float(error.norm())
        if not size or not own or not SIZES[0] <= own / size <= SIZES[1]:
            continue
        correlation = float((theirs * error).sum()) / (size * own)
        if correlation >= CORRELATED:
            words = f"the error of {name} is that of {fault.sentence} (correlation {correlation:.2f})"
            found.append(Match(fault.sentence, words, own / size, True, fault.kind, correlation))
    return sorted(found, key=lambda m: -(m.correlation or 0.0))


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
