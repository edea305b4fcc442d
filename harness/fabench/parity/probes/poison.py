"""POISON: outputs and workspaces start as NaN, as 0 and as a large number; nothing of them may show."""

from __future__ import annotations

import torch

from fabench.inputs import rotate
from fabench.parity.bench import Bench, NotApplicable, Passed, Verdict
from fabench.parity.probes.allocation import Poisoned
from fabench.parity.probes.repeats import blaming, must_agree, under

FILLS = (0xFF, 0x00, 0x7B)


def run(bench: Bench) -> Verdict:
    """Three runs over three fills: each obeys the rule, and they agree."""
    return blaming(bench, lambda: _run(bench))


def _run(bench: Bench) -> Verdict:
    runs = []
    for byte in FILLS:
        freed_blocks(bench, byte)
        outputs = under(Poisoned(byte), bench, rotate(bench.tensors, 0))
        if isinstance(outputs, NotApplicable):
            return outputs
        bench.judge_again(outputs, f"with uninitialised memory filled with 0x{byte:02X}: ")
        runs.append(outputs)
    differing = {name for other in runs[1:] for name in must_agree(bench, runs[0], other, "over other memory")}
    return Passed(note=f"{', '.join(sorted(differing))} differ in bits from run to run" if differing else None)


def freed_blocks(bench: Bench, byte: int) -> None:
    """Leave the pattern in free blocks of the outputs' sizes, for kernels that allocate outside torch's operators."""
    case = bench.case
    rows = [(case.heads, case.Nq, case.dv), (case.heads, case.Nq, case.d)]
    keys = [(case.kv_heads, case.Nk, case.d), (case.kv_heads, case.Nk, case.dv)]
    sizes = [case.batch * h * n * c for h, n, c in (*rows, *keys)]
    size = bench.dtype.itemsize
    blocks = [
        torch.full((max(1, n * size),), byte, dtype=torch.uint8, device=bench.device) for n in sizes for _ in range(3)
    ]
    del blocks
