"""GUARD: inputs, outputs and workspaces lie between margins: no write goes there, and no read of them shows."""

from __future__ import annotations

import math

import torch

from fabench.inputs import Tensors, in_margins, margins, rotate
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict
from fabench.parity.probes.allocation import Guarded
from fabench.parity.probes.repeats import blaming, must_agree, under
from fabench.text import counted

MARGINS = (math.nan, 1.0e4)


def run(bench: Bench) -> Verdict:
    """NaN margins, then margins of 1e4: unchanged after each call, and the outputs agree."""
    return blaming(bench, lambda: _run(bench))


def _run(bench: Bench) -> Verdict:
    if any(0 in x.stride() and x.numel() for _, x in bench.tensors.items()):
        return NotApplicable("expanded tensors have no margins of their own")
    runs = []
    for value in MARGINS:
        guarded = Tensors(**{n: in_margins(x, value) for n, x in rotate(bench.tensors, 0).items()})
        before = {n: margins(x) for n, x in guarded.items()}
        allocations = Guarded()
        outputs = under(allocations, bench, guarded)
        if isinstance(outputs, NotApplicable):
            return outputs
        bench.subject.synchronize()
        for name, x in guarded.items():
            if not torch.equal(margins(x), before[name]):
                count = int((margins(x) != before[name]).sum())
                raise Failed(f"{counted(count, 'element')} written outside the input '{name}'")
        if touched := allocations.touched():
            raise Failed(f"written past its own memory: {touched}")
        what = f"with {value:g} around the inputs"
        bench.judge_again(outputs, f"{what}: ")
        runs.append({name: x.clone() for name, x in outputs.items()})
    must_agree(bench, runs[0], runs[1], "with other values around the inputs")
    return Passed()
