"""Two calls that should agree: bit by bit where the kernel declares it, else both within the rule."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from fabench.inputs import Tensors, rotate
from fabench.outcome import Failure, sentence
from fabench.parity.bench import Bench, Failed, NotApplicable, first_index


def everything(bench: Bench, tensors: Tensors) -> dict[str, torch.Tensor]:
    """O, gradients and LSE of the kernel on `tensors` themselves (no copies)."""
    outputs = bench.subject.call(bench.case, tensors, backward=bench.backward)
    if bench.lse:
        outputs["LSE"] = bench.subject.call(bench.case, tensors, lse=True)["LSE"]
    return outputs


def under(mode: AbstractContextManager[Any], bench: Bench, tensors: Tensors) -> dict[str, torch.Tensor] | NotApplicable:
    """`everything` with a dispatch mode on; a kernel that cannot run under one (compiled graphs) is not blamed."""
    try:
        with mode:
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


def must_agree(
    bench: Bench, first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor], what: str
) -> list[str]:
    """Fail if a tensor declared deterministic differs, or another no longer obeys the rule. Names that differ."""
    differing = [name for name in first if not same_bits(first[name], second[name])]
    for name in differing:
        if name in bench.subject.facts.deterministic:
            at = first_index((first[name] != second[name]) | (first[name].isnan() != second[name].isnan()))
            raise Failed(
                f"{what}: '{name}' is declared deterministic and differs, {float(first[name][at]):.9g} and "
                f"{float(second[name][at]):.9g} at {list(at)}"
            )
    if differing:
        bench.judge_again({name: second[name] for name in differing}, f"{what}: ")
    return differing
