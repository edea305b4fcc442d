"""STALE: the same buffers with new values, then new buffers of the same shapes: nothing may be remembered.

An answer is the caller's: later calls must not change it, and its backward pass may come after theirs.
"""

from __future__ import annotations

import time

import torch

from fabench.inputs import rotate
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict
from fabench.parity.probes.repeats import everything, first_difference, same_bits

OVERWRITTEN = "it answers every call in the same memory: a later call overwrites an earlier answer"
LATE = "it returns before it has written everything: its answer changes after the call"
LATE_SECONDS = 0.02
"""How long an answer is watched; a thread or stream that was not waited for has written by then."""
LAST_FORWARD = "its backward pass uses what the last forward pass left behind, not its own"


def run(bench: Bench) -> Verdict:
    """Three calls, whose answers follow from the first one's reference; then one around another."""
    _watched(bench)
    if bench.already_wrong:
        return NotApplicable("the plain call is already wrong")
    t = rotate(bench.tensors, 0)
    first = everything(bench, t)
    bench.judge(bench.expected, first, bench.tensors, "the first call: ")
    kept = {name: x.clone() for name, x in first.items()}
    changed = rotate(bench.tensors, 3)
    for (_, x), (_, new) in zip(t.items(), changed.items(), strict=True):
        if 0 not in x.stride():
            x.copy_(new)
    if any(0 in x.stride() and x.numel() for _, x in t.items()):
        t = changed
    expected = bench.expected.rotated(3)
    bench.judge(expected, everything(bench, t), t, "new values in the same memory: ")
    other = rotate(bench.tensors, 1)
    bench.judge(bench.expected.rotated(1), everything(bench, other), other, "other memory of the same shapes: ")
    for name, x in first.items():
        if not same_bits(x, kept[name]):
            at = first_difference(x, kept[name])
            change = f"{float(kept[name][at]):.6g} became {float(x[at]):.6g}"
            message = f"'{name}' of the first call is changed by later calls, at {list(at)}: {change}"
            raise Failed(message, named=OVERWRITTEN)
    if bench.backward:
        _around_another(bench)
    return Passed()


def _watched(bench: Bench) -> None:
    """A forward pass whose O is copied at once, and looked at again a little later."""
    O = bench.subject.call(bench.case, rotate(bench.tensors, 0))["O"]
    at_once = O.clone()
    time.sleep(LATE_SECONDS)
    if O.device.type == "cuda":
        torch.cuda.synchronize(O.device)
    if not same_bits(O, at_once):
        at = first_difference(O, at_once)
        change = f"{float(at_once[at]):.6g} became {float(O[at]):.6g}"
        raise Failed(f"'O' changes after the call has returned, at {list(at)}: {change}", named=LATE)


def _around_another(bench: Bench) -> None:
    """Forward, a whole other call, backward: as with several layers, or accumulated gradients."""
    other = rotate(bench.tensors, 1)
    outputs = bench.subject.call(
        bench.case,
        rotate(bench.tensors, 0),
        backward=True,
        between=lambda: bench.subject.call(bench.case, other, backward=True),
    )
    try:
        bench.judge(bench.expected, outputs, bench.tensors, "with another call between forward and backward: ")
    except Failed as failed:
        failed.named = LAST_FORWARD if failed.witness and failed.witness.tensor != "O" else OVERWRITTEN
        raise
