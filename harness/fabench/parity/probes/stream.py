"""STREAM: on a side stream the inputs arrive late; a kernel on any other stream reads what was there before."""

from __future__ import annotations

import torch

from fabench.inputs import rotate
from fabench.parity.bench import Bench, NotApplicable, Passed, Verdict

SLEEP_CYCLES = 50_000_000
"""About 25 ms: longer than a launch takes to reach the device."""


def run(bench: Bench) -> Verdict:
    """Sleep, copy the good inputs over poison, call, clone the output: all on one side stream."""
    if bench.already_wrong:
        return NotApplicable("the plain call is already wrong")
    if bench.device.type != "cuda":
        return NotApplicable("streams need a CUDA device")
    good = rotate(bench.tensors, 0)
    late = rotate(bench.tensors, 0)
    if any(0 in x.stride() and x.numel() for _, x in late.items()):
        return NotApplicable("expanded tensors cannot be filled in place")
    bench.call(bench.tensors, backward=bench.backward)  # compile outside
    for _, x in late.items():
        x.fill_(torch.nan)
    torch.cuda.synchronize(bench.device)
    side = torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        for (_, x), (_, value) in zip(late.items(), good.items(), strict=True):
            x.copy_(value)
        call = bench.subject.prepared(bench.case).call
        if bench.backward:
            leaves = [x.requires_grad_() for x in (late.q, late.k, late.v)]
            O = call(*leaves)
            assert isinstance(O, torch.Tensor)
            gradients = torch.autograd.grad(O, leaves, late.dO)
            outputs = {
                "O": O.detach().clone(),
                **{n: g.clone() for n, g in zip(("dQ", "dK", "dV"), gradients, strict=True)},
            }
        else:
            with torch.no_grad():
                O = call(late.q, late.k, late.v)
            assert isinstance(O, torch.Tensor)
            outputs = {"O": O.clone()}
    side.synchronize()
    torch.cuda.synchronize(bench.device)
    bench.judge(bench.expected, outputs, bench.tensors, "on a side stream with late inputs: ")
    return Passed()
