"""MUTATE: the inputs are the caller's; they are bit by bit the same after the call."""

from __future__ import annotations

from fabench.inputs import rotate
from fabench.parity.bench import Bench, Failed, Passed, Verdict
from fabench.parity.largest import first_index
from fabench.parity.probes.repeats import everything, same_bits


def run(bench: Bench) -> Verdict:
    """Forward, and backward where there is one. (That no output is a view of an input is checked at every call.)"""
    t = rotate(bench.tensors, 0)
    before = rotate(t, 0)
    everything(bench, t)
    for (name, x), (_, old) in zip(t.items(), before.items(), strict=True):
        if not same_bits(x, old):
            at = first_index((x != old) | (x.isnan() != old.isnan()))
            change = f"{float(old[at]):.6g} became {float(x[at]):.6g}"
            raise Failed(f"the input '{name}' is changed by the call, at {list(at)}: {change}")
    return Passed()
