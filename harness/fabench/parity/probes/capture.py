"""CAPTURE: a CUDA graph of the call, replayed after the inputs changed, must give the new answer."""

from __future__ import annotations

import torch

from fabench.inputs import rotate
from fabench.outcome import first_line
from fabench.parity.bench import Bench, NotApplicable, Passed, Verdict


def run(bench: Bench) -> Verdict:
    """Capture the forward pass, change q, k and v in place, replay, judge; twice."""
    if bench.already_wrong:
        return NotApplicable("the plain call is already wrong")
    if bench.device.type != "cuda":
        return NotApplicable("CUDA graphs need a CUDA device")
    if not bench.subject.facts.cuda_graphs:
        return NotApplicable("it declares that it cannot be captured")
    t = rotate(bench.tensors, 0)
    if any(0 in x.stride() and x.numel() for _, x in t.items()):
        return NotApplicable("expanded tensors cannot be filled in place")
    call = bench.subject.prepared(bench.case).call
    side = torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(bench.device)  # the inputs were made on another stream
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                call(t.q, t.k, t.v)
        side.synchronize()
        try:
            with torch.cuda.graph(graph, stream=side):
                O = call(t.q, t.k, t.v)
        except RuntimeError as error:
            if bench.subject.facts.bare:
                return NotApplicable(f"it cannot be captured: {first_line(error)}")
            raise
    assert isinstance(O, torch.Tensor)
    for index in (3, 1):
        for (_, x), (_, value) in zip(t.items(), rotate(bench.tensors, index).items(), strict=True):
            x.copy_(value)
        O.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize(bench.device)
        bench.judge(bench.expected.rotated(index), {"O": O}, t, "a replayed graph on changed inputs: ")
    return Passed()
