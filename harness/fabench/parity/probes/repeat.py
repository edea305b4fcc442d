"""REPEAT: the same call again and again; a race shows as a run that differs or is wrong. The first call counts."""

from __future__ import annotations

import torch

from fabench.inputs import rotate
from fabench.parity.bench import Bench, Passed, Verdict
from fabench.parity.probes.repeats import everything, must_agree

RUNS, STRESS_RUNS = 10, 250


def run(bench: Bench) -> Verdict:
    """Bitwise for what is declared deterministic, within the rule for the rest."""
    runs = STRESS_RUNS if bench.trial.stress else RUNS
    t = rotate(bench.tensors, 0)
    first = everything(bench, t)
    bench.judge_again(first, "the first run: ")
    differing: set[str] = set()
    other_work = _OtherWork(bench) if bench.trial.stress and bench.device.type == "cuda" else None
    for i in range(1, runs):
        if other_work is not None:
            other_work.start()
        differing.update(must_agree(bench, first, everything(bench, t), f"run {i + 1} of {runs}"))
    if differing:
        return Passed(note=f"{', '.join(sorted(differing))} differ in bits from run to run")
    return Passed()


class _OtherWork:
    """GEMMs on another stream, and a slow producer on the same stream just before the call."""

    def __init__(self, bench: Bench) -> None:
        self.a = torch.randn(2048, 2048, device=bench.device, dtype=torch.float16)
        self.small = torch.empty(1 << 16, device=bench.device)
        self.side = torch.cuda.Stream(bench.device)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Queue it; nothing is waited for."""
        with torch.cuda.stream(self.side):
            for _ in range(4):
                torch.mm(self.a, self.a)
        torch.cuda._sleep(20_000)  # type: ignore[no-untyped-call]
        self.small.normal_()
