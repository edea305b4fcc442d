"""EQUIVARIANCE: what must follow from one output: permuted batch and heads, two halves of the keys, a shifted V.

Permuting permutes bits in most kernels. In some right ones it does not: a BLAS takes another path for another alignment
of a batch entry. So the bits are reported, and only a difference that two correct outputs cannot have is a failure.
"""

from __future__ import annotations

import dataclasses

import torch

from fabench.dtypes import DTYPES
from fabench.inputs import Tensors, copy_in_order
from fabench.outcome import REFUSALS
from fabench.parity.bench import Bench, Failed, Passed, Verdict, allowing
from fabench.parity.extent import row_rho
from fabench.parity.largest import first_index
from fabench.parity.thresholds import limits
from fabench.reference import State, merge
from fabench.reference.merge import finite

SHIFT = 1.0


def run(bench: Bench) -> Verdict:
    """Permutation, two halves and a shift, each within the rule; that bits change with the place is reported."""
    case, t = bench.case, bench.tensors
    outputs = bench.call(t, backward=bench.backward)
    moved: list[str] = []
    if bench.trial.order != "expanded_kv" and bench.trial.gradient_order != "expanded":
        permuted = bench.call(_permuted(bench, t), backward=bench.backward)
        moved = [n for n, x in outputs.items() if not _compare(bench, n, permuted[n], _permute(bench, n, x))]
    if case.inputs in ("normal", "std3"):
        shifted = Tensors(t.q, t.k, copy_in_order(t.v + SHIFT, t.v))
        expected = bench.reference(shifted)
        bench.judge(expected, {"O": bench.call(shifted)["O"]}, shifted, f"V + {SHIFT:g}: ")
    if bench.lse and case.mask.is_full and case.Nk >= 2:
        _halves(bench, t)
    note = f"bits of {', '.join(moved)} change with the place in batch and heads" if moved else None
    return Passed(note=note)


def _orders(bench: Bench) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Reversed batch; reversed kv heads; the query heads that go with them, so that dK and dV sum in the same order."""
    case = bench.case
    group = case.heads // case.kv_heads
    batch, kv = torch.arange(case.batch).flip(0), torch.arange(case.kv_heads).flip(0)
    heads = (kv[:, None] * group + torch.arange(group)).flatten()
    return batch.to(bench.device), kv.to(bench.device), heads.to(bench.device)


def _permuted(bench: Bench, t: Tensors) -> Tensors:
    batch, kv, heads = _orders(bench)
    pick = {"q": heads, "k": kv, "v": kv, "dO": heads}
    return bench.in_order({name: x[batch][:, pick[name]] for name, x in t.items()})


def _permute(bench: Bench, name: str, x: torch.Tensor) -> torch.Tensor:
    batch, kv, heads = _orders(bench)
    return x[batch][:, kv if name in ("dK", "dV") else heads]


def _compare(bench: Bench, name: str, got: torch.Tensor, right: torch.Tensor) -> bool:
    """True if the bits agree; fails if the difference is more than two correct outputs may have."""
    if torch.equal(got, right):
        return True
    batch, kv, heads = _orders(bench)
    expected = bench.expected[name]
    if expected.rows is None:
        order = kv if name in ("dK", "dV") else heads
        N = expected.tolerance[bench.accuracy][batch][:, order]
        rho = row_rho(got.double(), right.double(), 2 * N)
        if not bool((rho > limits(bench.case.dtype, bench.accuracy)[0]).any()):
            return False
    at = first_index(got != right) if bool((got != right).any()) else first_index(torch.isnan(got))
    raise Failed(
        f"'{name}' of permuted batch and heads must be the permuted '{name}', got {float(got[at]):.6g} instead of "
        f"{float(right[at]):.6g} at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}"
    )


def _halves(bench: Bench, t: Tensors) -> None:
    """Two halves of the keys, merged by their LSE, are the whole."""
    case, middle = bench.case, bench.case.Nk // 2
    parts = []
    for keys in (slice(0, middle), slice(middle, case.Nk)):
        half = dataclasses.replace(case, Nk=keys.stop - keys.start, direction="forward", layout="bhsd")
        if bench.subject.reasons(half):
            return
        part = Tensors(t.q.clone(), t.k[:, :, keys].clone(), t.v[:, :, keys].clone())
        try:
            outputs = bench.subject.call(half, part, lse=True)
        except REFUSALS:
            if bench.subject.answered(half, lse=True):
                raise
            return  # it takes the whole and not a half, which is its right
        parts.append(State.from_output(outputs["O"].double(), outputs["LSE"].double()))
    whole = merge(*parts)
    expected = bench.expected
    if not expected.sampled:
        expected = allowing(expected, "O", _roundings(bench, parts, whole))
    bench.judge(expected, {"O": whole.output().to(bench.dtype)}, t, "two halves of the keys merged by LSE: ")


def _roundings(bench: Bench, parts: list[State], whole: State) -> torch.Tensor:
    """What each half's O has lost by being rounded to the dtype, by the weight it is merged with."""
    facts = DTYPES[bench.case.dtype]
    lost = [facts.unit / 2 * x.O.norm(dim=-1) + facts.eta * bench.case.dv**0.5 for x in parts]
    weights = [torch.exp(x.lse - finite(whole.lse)) for x in parts]
    return torch.stack([w * x for w, x in zip(weights, lost, strict=True)]).sum(0)
