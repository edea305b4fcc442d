"""ADDR: a softmax that is one-hot makes O a row of V, and V says in small integers where it came from.

Keys are distinct ±1 codes, q_i is a large multiple of the code of the one key it shall find, so P is 1 there and below
1e-13 elsewhere: O is V bitwise, in fp32 within four ulp. V[b, kv head, key, channel] are integers of 1 .. 200: wrong
heads, strides, pages and channels show. With dO in small integers dV is exact too.
"""

from __future__ import annotations

import torch

from fabench.case import Case
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed, Verdict, element
from fabench.parity.largest import first_index, where_largest

MARGIN_NATS = 30.0
"""The right key's score leads every other by at least this."""
LARGEST_V, LARGEST_DO = 200, 4


def run(bench: Bench) -> Verdict:
    """O, and dV where there are gradients, bitwise."""
    case = bench.case
    if case.softcap:
        return NotApplicable("softcap flattens the scores")
    if not case.softmax_scale:
        return NotApplicable("scale 0 makes all scores equal")
    if not case.Nq or not case.Nk or 2**case.d < case.Nk:
        return NotApplicable("no queries, no keys, or more keys than codes")
    chosen = chosen_keys(case, bench.device)
    code = codes(case, bench.device)
    v, dO = stamps(case, bench.device)
    heads = torch.arange(case.heads, device=bench.device) // (case.heads // case.kv_heads)
    shown = chosen >= 0
    if bench.trial.order == "expanded_kv":
        code, v = (x[:, :1].expand_as(x) for x in (code, v))
    q = code[:, heads[:, None], chosen.clamp(min=0)] * amplitude(case)
    right = torch.where(shown[..., None], v[:, heads[:, None], chosen.clamp(min=0)], 0.0)
    tensors = bench.laid_out(q, code, v, dO)
    outputs = bench.call(tensors, backward=bench.backward)
    got = outputs["O"].double()
    # fp32 keeps the rounding of P and l: a few ulp. The others round it away.
    wrong = (got - right).abs() > (4 * bench.unit * right if bench.dtype == torch.float32 else 0.0)
    wrong |= ~torch.isfinite(got)
    if bool(wrong.any()):
        at = first_index(wrong)
        where = _found(got[at[:3]], v)
        asked = f"V of b {at[0]}, kv head {int(heads[at[1]])}, key {int(chosen[at[1], at[2]])}"
        message = (
            f"O at b {at[0]}, h {at[1]}, row {at[2]} must be {asked}; it is {where}"
            if bool(shown[at[1], at[2]])
            else f"O at b {at[0]}, h {at[1]}, row {at[2]} must be 0, it is {where}"
        )
        raise Failed(
            f"{message} (channel {at[3]}: got {float(got[at]):g}, expected {float(right[at]):g})",
            witness=element("O", at, got, float(right[at]), 1e-6),
            tensors=tensors,
            outputs=outputs,
        )
    if "dV" in outputs and bench.trial.gradient_order != "expanded":
        _check_dv(bench, outputs["dV"].double(), chosen, dO)
    return Passed()


def chosen_keys(case: Case, device: torch.device) -> torch.Tensor:
    """Which key each query of each head shall find [heads, Nq]; -1 where it attends to none."""
    rows = []
    for i in range(case.Nq):
        keys = case.mask.keys(i)
        rows.append([keys[(i * 31 + h * 17 + 5) % len(keys)] if keys else -1 for h in range(case.heads)])
    return torch.tensor(rows, device=device).T.contiguous()


def codes(case: Case, device: torch.device) -> torch.Tensor:
    """Distinct ±1 rows [batch, kv_heads, Nk, d]: the bits of a scrambled key number; one-hot would need Nk <= d."""
    key = torch.arange(case.Nk, device=device)
    bits = torch.arange(case.d, device=device)
    # Channel c repeats bit c mod width, so that codes differ in many channels and in every part of d.
    code = (1.0 - 2.0 * ((key[:, None] >> (bits % code_width(case))) & 1)).float()
    flip = 1.0 - 2.0 * ((bits * 5 % 7) % 2).float()
    return (code * flip).expand(case.batch, case.kv_heads, case.Nk, case.d).contiguous()


def code_width(case: Case) -> int:
    """Bits that tell the keys apart."""
    return max(1, (case.Nk - 1).bit_length())


def amplitude(case: Case) -> float:
    """What q is its key's code times: two codes differ in at least floor(d / width) channels, each by 2."""
    return MARGIN_NATS / 2 / (case.d // code_width(case)) / case.softmax_scale


def stamps(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """V and dO in small integers that differ by batch entry, head, row and channel."""

    def numbers(heads: int, N: int, dims: int, largest: int) -> torch.Tensor:
        b, h, n, c = torch.meshgrid(
            *(torch.arange(size, device=device) for size in (case.batch, heads, N, dims)), indexing="ij"
        )
        mixed = b * 7919 + h * 104729 + n * 1299709 + c * 15485863
        return ((mixed ^ (mixed >> 7)) % largest + 1).float()

    v = numbers(case.kv_heads, case.Nk, case.dv, LARGEST_V)
    dO = numbers(case.heads, case.Nq, case.dv, 2 * LARGEST_DO) - LARGEST_DO
    return v, dO


def _check_dv(bench: Bench, got: torch.Tensor, chosen: torch.Tensor, dO: torch.Tensor) -> None:
    """DV[j] is the sum of the dO of the queries that found key j: exact in the dtype while it is small."""
    case = bench.case
    group = case.heads // case.kv_heads
    right = torch.zeros(case.batch, case.kv_heads, case.Nk + 1, case.dv, dtype=torch.float64, device=bench.device)
    for h in range(case.heads):
        right[:, h // group].index_add_(1, chosen[h] % (case.Nk + 1), dO[:, h].double())
    right = right[:, :, : case.Nk]
    # In fp32 P = exp(S - LSE) keeps the rounding of S; wrong rows are off by whole numbers. 16 bits round it to 1.
    slack = 0.01 * (1.0 + right.abs()) if bench.dtype == torch.float32 else torch.full_like(right, 1e-6)
    wrong = (right.abs() <= 1.0 / bench.unit) & ~((got - right).abs() <= slack)
    if bool(wrong.any()):
        at = first_index(wrong)
        found = _found(got[at[:3]], right)
        raise Failed(
            f"dV at b {at[0]}, kv head {at[1]}, key {at[2]} must be the sum of the dO of the queries that found it; "
            f"it is {found} (channel {at[3]}: got {float(got[at]):g}, expected {float(right[at]):g})",
            witness=element("dV", at, got, float(right[at]), 1e-6),
        )


def _found(row: torch.Tensor, rows: torch.Tensor) -> str:
    """Whose row this is, in words."""
    if not bool(torch.isfinite(row).all()):
        return "not finite"
    if not bool(row.any()):
        return "0"
    same = (rows.double() == row).all(-1)
    if bool(same.any()):
        b, h, n = first_index(same)
        return f"that of b {b}, head {h}, row {n}"
    part = (rows.double() == row).double().mean(-1)
    best = where_largest(part)
    if float(part[best]) >= 0.25:
        channels = (rows.double()[best] == row).nonzero().flatten()
        return (
            f"that of b {best[0]}, head {best[1]}, row {best[2]} in {len(channels)} of {row.numel()} channels "
            f"(the first {int(channels[0])}, the last {int(channels[-1])})"
        )
    return "no row of it"
