"""The numeric rule: is this output as close to the fp64 reference as a competent kernel of its class is?

Per row r, rho = |That_r - T*_r| / N_r with N_r from `fabench.reference`. A tensor passes if, element by element, its
NaN and inf are where the reference's are and its contract zeros hold; max rho <= 4; rms rho <= 1.25; and no element is
off by more than 16 times its share of N_r (1/sqrt(D), or more in a channel that dominates the row). fp32 with TF32 off
has twice these limits. LSE has an absolute tolerance instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.names import TENSORS, Accuracy
from fabench.parity.largest import first_index
from fabench.parity.metrics import describe
from fabench.parity.thresholds import LSE_RHO, WARN_RHO, limits
from fabench.records import Parity, TensorError
from fabench.reference import Expected, Reference
from fabench.text import counted

LOG2_E = math.log2(math.e)


@dataclass
class Judgement:
    """The verdict on one call's outputs."""

    passed: bool
    warn: bool
    """Passed with a max rho above 3."""
    parity: Parity
    worst: dict[str, Any] | None
    """Of the first tensor that fails (or the largest rho): tensor, b, h, row, col, got, expected, rho."""
    message: str
    """One sentence; what failed, or the largest rho."""
    failures: dict[str, str] = field(default_factory=dict)
    """Tensor -> why it fails."""


@dataclass
class _Verdict:
    failure: str | None
    error: TensorError
    worst: dict[str, Any] | None
    rho: float


def judge(case: Case, reference: Reference, outputs: Mapping[str, torch.Tensor], accuracy: Accuracy) -> Judgement:
    """Judge the `outputs` (O, and of LSE, dQ, dK, dV those that are there) as class `accuracy`.

    An output whose shape, dtype or type is not what the contract says is a failure, not an exception. Raises KeyError
    if the reference was computed without `accuracy`.
    """
    verdicts: dict[str, _Verdict] = {}
    for name in TENSORS:
        if name in outputs and name in reference.outputs:
            expected = reference[name]
            form = wrong_form(case, name, outputs[name])
            if form is not None:
                verdicts[name] = _Verdict(form, TensorError(), None, math.inf)
            elif name == "LSE":
                verdicts[name] = _judge_lse(expected, outputs[name], accuracy)
            else:
                verdicts[name] = _judge_tensor(case, name, expected, outputs[name], accuracy)
    failures = {name: v.failure for name, v in verdicts.items() if v.failure}
    rho_of = {name: v.rho for name, v in verdicts.items() if name != "LSE"}
    culprit = next(iter(failures), max(rho_of, key=lambda n: rho_of[n], default=None))
    fields = {("lse" if name == "LSE" else name): v.error for name, v in verdicts.items()}
    rows = reference["O"].value.shape[:3].numel() if reference.sampled else None
    parity = Parity.model_validate({"class": accuracy, "rows_checked": rows, **fields})
    largest = max(rho_of.values(), default=0.0)
    return Judgement(
        passed=not failures,
        warn=not failures and largest > WARN_RHO,
        parity=parity,
        worst=verdicts[culprit].worst if culprit else None,
        message="; ".join(failures.values()) or f"max rho {largest:.2f} of {limits(case.dtype, accuracy)[0]:g}",
        failures=failures,
    )


def output_shape(case: Case, name: str) -> tuple[int, ...]:
    """The shape the contract gives an output."""
    return {
        "O": (case.batch, case.heads, case.Nq, case.dv),
        "LSE": (case.batch, case.heads, case.Nq),
        "dQ": (case.batch, case.heads, case.Nq, case.d),
        "dK": (case.batch, case.kv_heads, case.Nk, case.d),
        "dV": (case.batch, case.kv_heads, case.Nk, case.dv),
    }[name]


def wrong_form(case: Case, name: str, output: object) -> str | None:
    """What is wrong with an output's type, shape or dtype, in one sentence, or None."""
    if type(output) is not torch.Tensor:
        return f"'{name}' must be a plain torch.Tensor, got {type(output).__module__}.{type(output).__qualname__}"
    shape, dtype = output_shape(case, name), "float32" if name == "LSE" else DTYPES[case.dtype].torch_name
    if tuple(output.shape) != shape:
        return f"'{name}' must have shape {list(shape)}, got {list(output.shape)}"
    if output.dtype != getattr(torch, dtype):
        return f"'{name}' must have dtype {dtype}, got {str(output.dtype).removeprefix('torch.')}"
    return None


def _judge_tensor(case: Case, name: str, expected: Expected, output: torch.Tensor, accuracy: Accuracy) -> _Verdict:
    got, exact, N = expected.select(output), expected.value, expected.tolerance[accuracy]
    if exact.numel() == 0:
        return _Verdict(None, TensorError(max_rho=0.0, rms_rho=0.0, max_el=0.0, max_abs=0.0), None, 0.0)
    bad = _mask_mismatch(case, got, exact)
    if bool(bad.any()):
        at = first_index(bad)
        error = describe(case, got, exact, _two_x(case, expected))
        return _Verdict(_mask_sentence(name, bad, at, got, exact), error, _at(expected, name, at, got, exact), math.inf)
    leaks = expected.empty[..., None] & (got != 0)
    if bool(leaks.any()):
        at = first_index(leaks)
        what = "queries that attend to no key" if name in ("O", "dQ") else "keys no query attends to"
        sentence = f"'{name}' must be 0 for {what}, got {float(got[at]):.3g} {_place(expected, at)}"
        return _Verdict(
            sentence, describe(case, got, exact, _two_x(case, expected)), _at(expected, name, at, got, exact), math.inf
        )
    difference = torch.where(torch.isfinite(exact) & torch.isfinite(got), got - exact, 0.0)
    rho = _ratio(difference.norm(dim=-1), N)
    assert expected.share is not None
    el = _ratio(difference.abs(), N[..., None] * expected.share)
    counted = rho[~expected.empty]
    max_rho, max_el = float(rho.max()), float(el.max())
    rms = float(counted.square().mean().sqrt()) if counted.numel() else 0.0
    top_rho, top_rms, top_el = limits(case.dtype, accuracy)
    row = first_index(rho == rho.max())
    at = (*row, int(difference[row].abs().argmax()))
    if max_rho <= top_rho and max_el > top_el:
        at = first_index(el == el.max())
    failure = None
    if max_rho > top_rho:
        failure = f"'{name}' max rho {_number(max_rho)} > {top_rho:g} {_place(expected, at)}"
    elif max_el > top_el:
        share = f"{_number(max_el)} > {top_el:g} times its share of the row's error"
        failure = f"'{name}' has one element {share} {_place(expected, at)}"
    elif rms > top_rms:
        failure = f"'{name}' rms rho {rms:.3g} > {top_rms:g}, worst {_place(expected, at)}"
    if failure:
        failure += f": got {float(got[at]):.6g}, expected {float(exact[at]):.6g}"
    rules = {"max_rho": _known(max_rho), "rms_rho": _known(rms), "max_el": _known(max_el)}
    error = describe(case, got, exact, _two_x(case, expected)).model_copy(update=rules)
    return _Verdict(failure, error, _at(expected, name, at, got, exact) | {"rho": _known(max_rho)}, max_rho)


def _judge_lse(expected: Expected, output: torch.Tensor, accuracy: Accuracy) -> _Verdict:
    got, exact, limit = expected.select(output), expected.value, expected.tolerance[accuracy]
    if exact.numel() == 0:
        return _Verdict(None, TensorError(max_rho=0.0, max_abs=0.0), None, 0.0)
    filled = ~expected.empty
    error = torch.where(filled, (got - exact).abs(), torch.where(got == exact, 0.0, torch.inf))
    error = torch.where(torch.isnan(error), torch.inf, error)
    ratio = _ratio(error, limit)
    worst, at = float(ratio.max()), first_index(ratio == ratio.max())
    finite = error[torch.isfinite(error)]
    numbers = TensorError(max_rho=_known(worst), max_abs=float(finite.max()) if finite.numel() else None)
    failure = None
    if worst > LSE_RHO:
        cause = lse_cause(got, exact, limit)
        failure = f"'LSE' is off {_place(expected, at)}: got {float(got[at]):.7g}, expected {float(exact[at]):.7g}"
        failure += f" ({cause})" if cause else ""
    return _Verdict(failure, numbers, _at(expected, "LSE", at, got, exact), worst)


def lse_cause(got: torch.Tensor, exact: torch.Tensor, limit: torch.Tensor) -> str | None:
    """A known mistake that explains a wrong LSE: base 2, negated, off by a constant, or the sign of an empty row."""
    empty = exact == -torch.inf
    filled = ~empty & torch.isfinite(got)
    g, e, t = got[filled], exact[filled], limit[filled]
    for meaning, guess in {"in base 2; it must be the natural logarithm": e * LOG2_E, "negated": -e}.items():
        if g.numel() and bool(((g - guess).abs() <= 2 * t + 1e-6 * e.abs()).all()):
            return meaning
    if bool((got[empty] == torch.inf).any()):
        return "+inf for a query that attends to no key; it must be -inf"
    if not g.numel():
        return None
    for name, low in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if bool((g == g.to(low).to(g.dtype)).all()) and bool(((g - e).abs() <= DTYPES[name].unit * e.abs() + t).all()):
            return f"rounded to {name}"
    shift = float((g - e).mean())
    if abs(shift) > float(t.max()) and bool((g - e - shift).abs().max() <= 2 * t.max()):
        return f"off by the constant {shift:.6g}" + (" = ln 2" if abs(abs(shift) - math.log(2)) < 1e-4 else "")
    if bool((got[empty] != -torch.inf).any()):
        return "finite for a query that attends to no key; it must be -inf"
    return None


def _mask_mismatch(case: Case, got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where NaN or inf differ. Next to the dtype's largest number a correct rounding may go either way."""
    largest = torch.finfo(getattr(torch, DTYPES[case.dtype].torch_name)).max
    unit = DTYPES[case.dtype].unit
    overflows = exact.abs() > largest * (1 + unit / 2)
    either_way = (exact.abs() > largest * (1 - 8 * unit)) & (exact.abs() < largest * (1 + 8 * unit))
    expected = torch.where(overflows, torch.sign(exact) * torch.inf, exact)
    inf_differs = (torch.isinf(got) | torch.isinf(expected)) & (got != expected) & ~either_way
    return (torch.isnan(got) != torch.isnan(exact)) | (inf_differs & ~torch.isnan(exact))


def _mask_sentence(name: str, bad: torch.Tensor, at: tuple[int, ...], got: torch.Tensor, exact: torch.Tensor) -> str:
    count, rows = int(bad.sum()), int(bad.any(-1).sum())
    spread = f"in {counted(count, 'element')} of {counted(rows, 'row')}"
    what = f"'{name}' has {float(got[at]):g} where {float(exact[at]):.3g} is expected, {spread}"
    return f"{what}, first at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}"


def _ratio(error: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Error / limit; where the limit is 0 only exact equality passes, so 0 or inf."""
    return torch.where(limit > 0, error / torch.where(limit > 0, limit, 1.0), torch.where(error == 0, 0.0, torch.inf))


def _row(expected: Expected, at: tuple[int, ...]) -> int:
    return at[2] if expected.rows is None else int(expected.rows[at[:3]])


def _place(expected: Expected, at: tuple[int, ...]) -> str:
    col = f", col {at[3]}" if len(at) > 3 else ""
    return f"at b {at[0]}, h {at[1]}, row {_row(expected, at)}{col}"


def _at(expected: Expected, name: str, at: tuple[int, ...], got: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    values = {"got": _known(float(got[at])), "expected": _known(float(exact[at]))}
    place = dict(zip(("b", "h", "row", "col"), at, strict=False)) | {"row": _row(expected, at)}
    return {"tensor": name, **place, **values}


def _known(x: float) -> float | None:
    """A number for a record, which holds no NaN or infinity."""
    return x if math.isfinite(x) else None


def _number(x: float) -> str:
    return "infinite" if math.isinf(x) else f"{x:.3g}"


def _two_x(case: Case, expected: Expected) -> float | None:
    """The error of flash-attention's yardstick, plain low-precision math (class B); fp32 has none."""
    return None if case.dtype == "fp32" else expected.model_error.get("B")
