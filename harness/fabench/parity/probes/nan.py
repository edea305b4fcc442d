"""NaN: one NaN in q, K or V reaches the outputs that depend on it; it must not vanish, nor reach any other.

Queries that mask the key, of the heads that read it, are the exception: an additive mask makes NaN + -inf there, and a
GEMM makes 0·NaN. torch's own math backend does both, so such a leak is reported and no failure. A query that attends to
one key alone has O = V whatever q and K are, so that its NaN may go either way.
"""

from __future__ import annotations

import math

import torch

from fabench.inputs import Tensors, rotate
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict, shown_pairs
from fabench.parity.largest import first_index
from fabench.text import counted


def run(bench: Bench) -> Verdict:
    """A NaN in one q row, one K row, one V element in turn."""
    case = bench.case
    if not case.Nq or not case.Nk:
        return NotApplicable("no queries or no keys")
    if bench.trial.order == "expanded_kv":
        return NotApplicable("one element of an expanded tensor belongs to all heads")
    if not case.softmax_scale:
        return NotApplicable("scale 0")
    shown = shown_pairs(case, bench.device)
    pairs = shown.nonzero()
    if not len(pairs):
        return NotApplicable("no query attends to a key")
    i, j = (int(x) for x in pairs[len(pairs) // 2])
    batch, kv_head = case.batch - 1, case.kv_heads - 1
    group = case.heads // case.kv_heads
    readers = slice(kv_head * group, (kv_head + 1) * group)
    if excuse := _q_row(bench, batch, case.heads - 1, i, shown.sum(1) == 1):
        return excuse
    notes = [f(bench, batch, kv_head, j, shown, readers) for f in (_k_row, _v_element)]
    return Passed(note="; ".join(n for n in notes if n) or None, numbers={"NaN after one inf": _infinite(bench, i)})


def _infinite(bench: Bench, i: int) -> float:
    """How many elements of O are NaN after one +inf in q: the kernel must only survive it."""
    tensors = Tensors(**{n: x for n, x in rotate(bench.tensors, 0).items() if n != "dO"})
    tensors.q[0, 0, i, 0] = math.inf
    return float(torch.isnan(bench.call(tensors)["O"]).sum())


def _nan_outputs(bench: Bench, name: str, at: tuple[int, ...]) -> torch.Tensor:
    """Where O is NaN [batch, heads, Nq, dv] after one NaN in an input."""
    tensors = Tensors(**{n: x for n, x in rotate(bench.tensors, 0).items() if n != "dO"})
    getattr(tensors, name)[at] = math.nan
    return torch.isnan(bench.call(tensors)["O"])


def _q_row(bench: Bench, b: int, h: int, i: int, alone: torch.Tensor) -> NotApplicable | None:
    got = _nan_outputs(bench, "q", (b, h, i, 0))
    expected = torch.zeros_like(got)
    expected[b, h, i] = True if not bool(alone[i]) else got[b, h, i]
    leaks = got & ~expected
    if bool(leaks.any()) and not bool((leaks & ~_product_of_nan_row(bench, b, h, i)).any()):
        dtype = bench.case.dtype
        return NotApplicable(f"torch's own {dtype} matrix product lets a NaN reach the row before it on this CPU")
    _compare(got, expected, f"a NaN in q of b {b}, h {h}, row {i}")
    return None


def _product_of_nan_row(bench: Bench, b: int, h: int, i: int) -> torch.Tensor:
    """Where torch's own P V is NaN [batch, heads, Nq, dv] if row i of P is, on a CPU: row i alone, or so it should be.

    With AMX and 16-bit inputs of odd Nk the row before, the last of a tile of 32, reads one element too far and takes
    it times zero (torch 2.13, oneDNN). On another device nothing is NaN: a kernel there answers for itself.
    """
    case = bench.case
    if bench.device.type != "cpu":
        return torch.zeros(case.batch, case.heads, case.Nq, case.dv, dtype=torch.bool, device=bench.device)
    dtype = bench.tensors.q.dtype
    P = torch.zeros(case.batch, case.heads, case.Nq, case.Nk, dtype=dtype)
    P[b, h, i] = math.nan
    return torch.isnan(P @ torch.zeros(case.batch, case.heads, case.Nk, case.dv, dtype=dtype))


def _k_row(bench: Bench, b: int, kv: int, j: int, shown: torch.Tensor, readers: slice) -> str | None:
    got = _nan_outputs(bench, "k", (b, kv, j, bench.case.d - 1))
    expected, allowed = torch.zeros_like(got), torch.zeros_like(got)
    sure = shown[:, j] & (shown.sum(1) > 1)
    expected[b, readers], allowed[b, readers] = sure[:, None], ~sure[:, None]
    return _with_leaks(got, expected, allowed, "K", f"of b {b}, kv head {kv}, key {j}")


def _v_element(bench: Bench, b: int, kv: int, j: int, shown: torch.Tensor, readers: slice) -> str | None:
    c = bench.case.dv - 1
    got = _nan_outputs(bench, "v", (b, kv, j, c))
    expected, allowed = torch.zeros_like(got), torch.zeros_like(got)
    expected[b, readers, :, c], allowed[b, readers, :, c] = shown[:, j], ~shown[:, j]
    return _with_leaks(got, expected, allowed, "V", f"of b {b}, kv head {kv}, key {j}, channel {c}")


def _with_leaks(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor, name: str, place: str) -> str | None:
    """Compare where there is no excuse; that there are NaN among the excused, in words."""
    _compare(got & ~allowed, expected, f"a NaN in {name} {place}")
    return f"a NaN in {name} leaks to queries that mask its key" if bool((got & allowed).any()) else None


def _compare(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    wrong = got != expected
    if bool(wrong.any()):
        at = first_index(wrong)
        nans = counted(int(got.sum()), "element is NaN", "elements are NaN")
        verb = "reaches O" if bool(got[at]) else "does not reach O"
        raise Failed(
            f"{what} {verb} at b {at[0]}, h {at[1]}, row {at[2]}, col {at[3]}: {nans}, "
            f"{counted(int(expected.sum()), 'depends on it', 'depend on it')}"
        )
