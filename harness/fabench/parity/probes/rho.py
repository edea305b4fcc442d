"""RHO: the numeric rule on the case's own inputs, forward, LSE and backward."""

from __future__ import annotations

import torch

from fabench.parity.bench import Bench, Failed, Passed, Verdict
from fabench.parity.largest import first_index


def run(bench: Bench) -> Verdict:
    """The kernel runs first, on copies; then the reference; then the rule."""
    outputs = bench.call(bench.tensors, backward=bench.backward)
    note = bench.subject.no_backward_here if bench.backward and "dQ" not in outputs else None
    with_lse = bench.call(bench.tensors, lse=True, backward=bench.backward) if bench.lse else {}
    judged = {**outputs, **({"LSE": with_lse["LSE"]} if with_lse else {})}
    close = {f"allclose {name}": float(allclose(bench, name, x)) for name, x in outputs.items()}
    try:
        judgement = bench.judge(bench.expected, judged, bench.tensors)
    except Failed as failed:
        failed.numbers = close
        raise
    others = {n: x for n, x in with_lse.items() if n in outputs and not torch.equal(x, outputs[n])}
    if others:
        try:
            bench.judge(bench.expected, others, bench.tensors, "when asked for LSE: ")
        except Failed as failed:
            if failed.witness is not None:
                failed.witness.with_lse = True
            raise
    if bench.expected.sampled:
        _every_element(bench, outputs)
    if note is None and with_lse and "dQ" in outputs and "dQ" not in with_lse:
        note = f"when asked for LSE, {bench.subject.no_backward_here}"
    return Passed(
        parity=judgement.parity.model_dump(mode="json", by_alias=True),
        warn=judgement.warn,
        numbers=close,
        note=note and f"no gradients: {note}",
    )


def allclose(bench: Bench, name: str, x: torch.Tensor) -> bool:
    """What `torch.testing.assert_close` with its default tolerances would say; shown beside the verdict."""
    expected = bench.expected[name]
    rtol, atol = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}.get(x.dtype, (1.3e-6, 1e-5))
    return torch.allclose(expected.select(x), expected.value, rtol=rtol, atol=atol)


def _every_element(bench: Bench, outputs: dict[str, torch.Tensor]) -> None:
    """Cheap checks of the rows that a sampled reference does not hold: finite, and inside the hull of V."""
    for name, x in outputs.items():
        if not bool(torch.isfinite(x).all()):
            raise Failed(f"'{name}' has {int((~torch.isfinite(x)).sum())} NaN or infinite elements")
    O, V = outputs["O"], bench.tensors.v.repeat_interleave(bench.case.heads // bench.case.kv_heads, 1)
    slack = 1.0 + 4 * bench.unit
    high, low = V.amax(2, keepdim=True).clamp(min=0.0) * slack, V.amin(2, keepdim=True).clamp(max=0.0) * slack
    outside = (high < O) | (low > O)
    if bool(outside.any()):
        at = first_index(outside)
        raise Failed(
            f"'O' must lie between the smallest and largest V of its channel, got {float(O[at]):.4g} at b {at[0]}, "
            f"h {at[1]}, row {at[2]}, col {at[3]}, outside [{float(low[at[0], at[1], 0, at[3]]):.4g}, "
            f"{float(high[at[0], at[1], 0, at[3]]):.4g}]"
        )
