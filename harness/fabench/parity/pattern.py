"""What the failing trials have in common that no passing one has: 'only with dtype = fp32'. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fabench.parity.trial import Result, Trial

FEWEST_BAD, FEWEST_GOOD = 2, 3
"""Failing and passing trials it takes to speak of a pattern."""


def attributes(trial: Trial) -> dict[str, Any]:
    """What may set trials apart."""
    case = trial.case
    return {
        "dtype": case.dtype,
        "d": case.d,
        "dv": case.dv,
        "Nq": case.Nq,
        "Nk": case.Nk,
        "causal": case.causal,
        "alignment": case.alignment,
        "window": None if case.window is None else "set",
        "softcap": "set" if case.softcap else None,
        "scale": None if case.scale is None else case.scale,
        "GQA": case.heads != case.kv_heads,
        "batch": case.batch,
        "inputs": case.inputs,
        "layout": case.layout,
        "order": trial.order,
        "dO": trial.gradient_order,
        "Nq and Nk": "equal" if case.Nq == case.Nk else "more queries" if case.Nq > case.Nk else "more keys",
        "N mod 64": "0" if case.Nq % 64 == 0 and case.Nk % 64 == 0 else "not 0",
        "N mod 128": "0" if case.Nq % 128 == 0 and case.Nk % 128 == 0 else "not 0",
    }


def pattern(results: Sequence[Result]) -> str | None:
    """'only where dtype = fp32' if every failing trial has it and no passing one, or None."""
    bad_trials = {r.trial for r in results if r.bad}
    good = [attributes(t) for t in {r.trial for r in results if r.ending == "passed"} - bad_trials]
    failing = [attributes(t) for t in bad_trials]
    if len(failing) < FEWEST_BAD or len(good) < FEWEST_GOOD:
        return None
    for name in failing[0]:
        values = {f[name] for f in failing}
        if len(values) != 1:
            continue
        value = next(iter(values))
        if value is not None and not any(g[name] == value for g in good):
            if isinstance(value, bool):
                return f"only {'with' if value else 'without'} {name}"
            return f"only where {name} = {value}"
    return None
