"""Two calls that should agree: bit by bit where the kernel declares it, else both within the rule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from fabench.inputs import Tensors, rotate
from fabench.outcome import Failure, sentence
from fabench.parity.bench import Bench, Failed, NotApplicable, Verdict
from fabench.parity.extent import row_rho
from fabench.parity.largest import first_index
from fabench.parity.probes.allocation import Poisoned, runs_compiled
from fabench.parity.thresholds import limits

FICKLE = "equal calls give different answers: a race, or state left over from the call before"
PLAIN_CALLS = 10


def everything(bench: Bench, tensors: Tensors) -> dict[str, torch.Tensor]:
    """O, gradients and LSE of the kernel on `tensors` themselves (no copies)."""
    outputs = bench.subject.call(bench.case, tensors, backward=bench.backward)
    if bench.lse:
        outputs["LSE"] = bench.subject.call(bench.case, tensors, lse=True)["LSE"]
    return outputs


def under(mode: AbstractContextManager[Any], bench: Bench, tensors: Tensors) -> dict[str, torch.Tensor] | NotApplicable:
    """`everything` with a dispatch mode on; a kernel that cannot run under one (compiled graphs) is not blamed.

    Where torch.compile is at work the mode stays off: see `runs_compiled`.
    """
    try:
        with contextlib.nullcontext() if runs_compiled() else mode:
            return everything(bench, tensors)
    except (Failure, torch.OutOfMemoryError):
        raise
    except Exception as error:
        everything(bench, rotate(tensors, 0))  # what fails without the mode too is the kernel's own failure
        return NotApplicable(f"it cannot run under a torch dispatch mode: {sentence(error)}")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality, NaN and signed zero included."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """Where two tensors first differ; NaN equals NaN."""
    return first_index((a != b) | (a.isnan() != b.isnan()))


def must_agree(
    bench: Bench, first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor], what: str
) -> list[str]:
    """Fail if a tensor declared deterministic differs, or another no longer obeys the rule. Names that differ."""
    differing = [name for name in first if not same_bits(first[name], second[name])]
    for name in differing:
        if name in bench.subject.facts.deterministic:
            at = first_difference(first[name], second[name])
            raise Failed(
                f"{what}: '{name}' is declared deterministic and differs, {float(first[name][at]):.9g} and "
                f"{float(second[name][at]):.9g} at {list(at)}"
            )
    if differing:
        bench.judge_again({name: second[name] for name in differing}, f"{what}: ")
    return differing


def blaming(bench: Bench, probe: Callable[[], Verdict]) -> Verdict:
    """The probe's verdict; of a kernel whose plain calls differ among themselves, the failure is named so."""
    try:
        return probe()
    except Failed as failed:
        if failed.named is None and _is_fickle(bench):
            failed.named = FICKLE
        raise


def _is_fickle(bench: Bench) -> bool:
    """True if calls on equal inputs, over memory filled alike, differ by more than two correct answers may."""
    runs = []
    for _ in range(PLAIN_CALLS):
        outputs = under(Poisoned(0x00), bench, rotate(bench.tensors, 0))
        if isinstance(outputs, NotApplicable):
            return False
        runs.append({name: x.clone() for name, x in outputs.items() if name != "LSE"})
    top = limits(bench.case.dtype, bench.accuracy)[0]
    for name, first in runs[0].items():
        e = bench.expected[name]
        for other in runs[1:]:
            rho = row_rho(e.select(other[name]), e.select(first), 2 * e.tolerance[bench.accuracy])
            if bool((rho > top).any()):
                return True
    return False
