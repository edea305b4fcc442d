"""MASK: which (query, key) pairs are attended, exactly: with q = 0 all P are 1/n, and indicators show through zeros.

forward  q = 0 and V the indicator of chosen keys: O[i, c] != 0 exactly where query i attends to key c.
dV       the same with dO the indicator of chosen queries: dV[j, c] != 0 exactly where query c attends to key j.
dQ       q = 0, K the indicator of chosen keys, V[:, 0] = ±1, dO = e_0: dQ[i, c] != 0 exactly where i attends to c.
dK       K = 0 and q the indicator of chosen queries instead: dK[j, c] != 0 exactly where query c attends to j.
Heads of one kv head share V and sum into dK and dV, so each has channels of its own there.
"""

from __future__ import annotations

import math

import torch

from fabench.case import Case
from fabench.inputs import Tensors, torch_dtype
from fabench.parity.bench import Bench, Failed, Passed, Verdict, shown_pairs
from fabench.parity.largest import first_index
from fabench.parity.trial import Witness
from fabench.text import counted

MOST_CALLS = 4


def run(bench: Bench) -> Verdict:
    """Forward, and each gradient the kernel has."""
    case = bench.case
    shown = shown_pairs(case, bench.device)
    for offset in _offsets(case.Nk, case.batch * case.kv_heads * case.dv):
        tensors, keys, queries = indicators(case, offset, bench.device)
        if bench.trial.order == "expanded_kv":
            keys = _first_head(case, keys)
        outputs = bench.call(bench.laid_out(*tensors), backward=bench.backward)
        _compare(bench, "O", outputs["O"], _of_keys(bench, shown, keys), tensors)
        if "dV" in outputs and bench.trial.gradient_order == "plain":
            _compare(bench, "dV", outputs["dV"], _of_queries(bench, shown, queries), tensors)
    if bench.backward and case.softmax_scale:
        _gradient(bench, shown, "dQ")
        _gradient(bench, shown, "dK")
    return Passed()


def _offsets(length: int, covered: int) -> list[int]:
    """Where the chosen positions of each call begin: all positions within a few calls, else spread ones."""
    calls = max(1, min(MOST_CALLS, -(-length // max(1, covered))))
    return [round(i * length / calls) for i in range(calls)]


def chosen(count: int, channels: int, length: int, offset: int, device: torch.device) -> torch.Tensor:
    """Positions [count, channels]: consecutive from `offset`, spread if there are more positions than channels."""
    if not length:
        return torch.zeros(count, channels, dtype=torch.long, device=device)
    index = torch.arange(count * channels, device=device).view(count, channels)
    step = max(1, length // (count * channels)) if count * channels * MOST_CALLS < length else 1
    return (offset + index * step) % length


def indicators(
    case: Case, offset: int, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """(q, k, v, dO) of the forward call, the keys [kv, dv] and the queries [kv, dv] behind its channels."""
    group, kv = case.heads // case.kv_heads, case.batch * case.kv_heads
    keys = chosen(kv, case.dv, case.Nk, offset, device)
    queries = chosen(kv, case.dv, case.Nq, offset, device)
    q = torch.zeros(case.batch, case.heads, case.Nq, case.d, device=device)
    k = _spread(case, device)
    v = (torch.arange(case.Nk, device=device)[None, :, None] == keys[:, None, :]).float()
    rows = (torch.arange(case.Nq, device=device)[None, :, None] == queries[:, None, :]).float()
    own = torch.arange(case.dv, device=device) % group == torch.arange(group, device=device)[:, None]
    dO = rows[:, None] * own[None, :, None, :]
    v = v.view(case.batch, case.kv_heads, case.Nk, case.dv)
    return (q, k, v, dO.reshape(case.batch, case.heads, case.Nq, case.dv)), keys, queries


def _first_head(case: Case, keys: torch.Tensor) -> torch.Tensor:
    """The keys each kv head really has where K and V are expanded from the first."""
    return keys.view(case.batch, case.kv_heads, -1)[:, :1].expand(-1, case.kv_heads, -1).reshape(keys.shape)


def _spread(case: Case, device: torch.device) -> torch.Tensor:
    """Values of both signs that must not matter: K beside q = 0."""
    shape = (case.batch, case.kv_heads, case.Nk, case.d)
    index = torch.arange(math.prod(shape), device=device)
    return (((index * 37 % 17).float() - 8.0) / 4.0).view(shape)


def _of_keys(bench: Bench, shown: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Expected O or dQ [batch, heads, Nq, channels]: does query i attend to the channel's key?"""
    case = bench.case
    wanted = shown[:, keys] if case.Nk else shown.new_zeros(case.Nq, *keys.shape)  # [Nq, kv, channels]
    wanted = wanted.permute(1, 0, 2).reshape(case.batch, case.kv_heads, case.Nq, keys.shape[1])
    return wanted.repeat_interleave(case.heads // case.kv_heads, 1)


def _of_queries(bench: Bench, shown: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Expected dV or dK [batch, kv_heads, Nk, channels]: does the channel's query attend to key j?"""
    case = bench.case
    wanted = shown[queries] if case.Nq else shown.new_zeros(*queries.shape, case.Nk)  # [kv, channels, Nk]
    return wanted.transpose(1, 2).reshape(case.batch, case.kv_heads, case.Nk, queries.shape[1])


def _gradient(bench: Bench, shown: torch.Tensor, name: str) -> None:
    """DQ or dK: dS is nonzero wherever n >= 2, because V[:, 0] = ±1 is never the mean of two or more of its kind."""
    case, device = bench.case, bench.device
    group, kv = case.heads // case.kv_heads, case.batch * case.kv_heads
    v = torch.zeros(case.batch, case.kv_heads, case.Nk, case.dv, device=device)
    v[..., 0] = 1.0 - 2.0 * (torch.arange(case.Nk, device=device) % 2)
    dO = torch.zeros(case.batch, case.heads, case.Nq, case.dv, device=device)
    dO[..., 0] = 1.0
    several = shown.sum(1) >= 2
    q = torch.zeros(case.batch, case.heads, case.Nq, case.d, device=device)
    k = torch.zeros(case.batch, case.kv_heads, case.Nk, case.d, device=device)
    if name == "dQ":
        keys = chosen(kv, case.d, case.Nk, 0, device)
        keys = _first_head(case, keys) if bench.trial.order == "expanded_kv" else keys
        k = (torch.arange(case.Nk, device=device)[None, :, None] == keys[:, None, :]).float().view_as(k)
        expected = _of_keys(bench, shown & several[:, None], keys)
    else:
        queries = chosen(kv, case.d, case.Nq, 0, device)
        own = torch.arange(case.d, device=device) % group == torch.arange(group, device=device)[:, None]
        rows = (torch.arange(case.Nq, device=device)[None, :, None] == queries[:, None, :]).float()
        q = (rows[:, None] * own[None, :, None, :]).reshape(q.shape)
        expected = _of_queries(bench, shown & several[:, None], queries)
    tensors = (q, k, v, dO)
    laid_out = bench.laid_out(*tensors)
    if bench.trial.gradient_order == "expanded":  # its dO is one number: e_0 cannot be said
        return
    outputs = bench.call(laid_out, backward=True)
    if name in outputs:
        # A row with one key has dS = P (dP - delta) = 0 but for the rounding of O: no say on it.
        unsure = ~several
        got = outputs[name].clone()
        if name == "dQ":
            got[:, :, unsure] = 0.0
        _compare(bench, name, got, expected, tensors, ignore_zero=True)


def _compare(
    bench: Bench,
    name: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    ignore_zero: bool = False,
) -> None:
    """Fail unless nonzero is exactly where `expected` is True; NaN counts as nonzero and is named."""
    shown = got != 0
    wrong = shown != expected
    if not bool(wrong.any()):
        return
    at = first_index(wrong)
    leaked, dropped = int((shown & ~expected).sum()), int((~shown & expected).sum())
    parts = []
    if leaked:
        parts.append(f"{counted(leaked, 'pair')} attended that the mask hides")
    if dropped:
        parts.append(f"{counted(dropped, 'pair')} not attended that the mask shows")
    place = f"b {at[0]}, h {at[1]}, row {at[2]}, channel {at[3]}"
    value = float(got[at])
    message = f"'{name}' shows {' and '.join(parts)}, first at {place}: got {value:.4g}"
    n = max(1, int(shown_pairs(bench.case, bench.device).sum(1).max()) if bench.case.Nq else 1)
    right = 1.0 / n if bool(expected[at]) else 0.0
    witness = Witness(name, list(at), value if value == value else None, right, 0.25 / n)
    cast = Tensors(*(x.to(torch_dtype(bench.case)) for x in tensors))
    raise Failed(message, witness=witness, tensors=cast, outputs={name: got})
