"""STALE: the same buffers with new values, then new buffers of the same shapes: nothing may be remembered."""

from __future__ import annotations

from fabench.inputs import rotate
from fabench.parity.bench import Bench, NotApplicable, Passed, Verdict
from fabench.parity.probes.repeats import everything


def run(bench: Bench) -> Verdict:
    """Three calls; the answers to the second and third follow from the first one's reference."""
    if bench.already_wrong:
        return NotApplicable("the plain call is already wrong")
    t = rotate(bench.tensors, 0)
    bench.judge(bench.expected, everything(bench, t), bench.tensors, "the first call: ")
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
    return Passed()
