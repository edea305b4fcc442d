"""EQUIVARIANCE: what must follow from one output: permuted batch and heads, two halves of the keys, a shifted V."""

from __future__ import annotations

import dataclasses

import torch

from fabench.inputs import Tensors
from fabench.parity.bench import Bench, Failed, Passed, Verdict, first_index
from fabench.reference import State, merge

SHIFT = 1.0


def run(bench: Bench) -> Verdict:
    """Permutation bit by bit (where two equal calls agree), halves and shift within the rule."""
    case, t = bench.case, bench.tensors
    outputs = bench.call(t, backward=bench.backward)
    again = bench.call(t, backward=bench.backward)
    note = None
    exact = [name for name in outputs if torch.equal(outputs[name], again[name])]
    if bench.trial.order != "expanded_kv" and bench.trial.gradient_order != "expanded":
        permuted = bench.call(_permuted(bench, t), backward=bench.backward)
        for name, x in outputs.items():
            _compare(bench, name, permuted[name], _permute(bench, name, x), bitwise=name in exact)
    if case.inputs in ("normal", "std3"):
        shifted = Tensors(t.q, t.k, t.v + SHIFT)
        expected = bench.reference(shifted)
        bench.judge(expected, {"O": bench.call(shifted)["O"]}, shifted, f"V + {SHIFT:g}: ")
    if bench.lse and case.mask.is_full and case.Nk >= 2:
        _halves(bench, t)
    if len(exact) < len(outputs):
        note = f"two equal calls differ in {', '.join(n for n in outputs if n not in exact)}"
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


def _compare(bench: Bench, name: str, got: torch.Tensor, right: torch.Tensor, *, bitwise: bool) -> None:
    if torch.equal(got, right):
        return
    batch, kv, heads = _orders(bench)
    if not bitwise:
        expected = bench.expected[name]
        order = kv if name in ("dK", "dV") else heads
        N = 4 * expected.tolerance[bench.accuracy][batch][:, order]
        if expected.rows is not None or bool(((got.double() - right.double()).norm(dim=-1) <= 2 * N).all()):
            return
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
        outputs = bench.subject.call(
            half, Tensors(t.q.clone(), t.k[:, :, keys].clone(), t.v[:, :, keys].clone()), lse=True
        )
        parts.append(State.from_output(outputs["O"].double(), outputs["LSE"].double()))
    O = merge(*parts).output().to(bench.dtype)
    bench.judge(bench.expected, {"O": O}, t, "two halves of the keys merged by LSE: ")
