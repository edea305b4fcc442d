"""Wrong backward passes over a right forward one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fabench.case import Case, Mask
from fabench.parity.faults.dense import Attention, Fault, fault
from fabench.parity.faults.masks import pairs

TILES = (32, 64, 128)
Step = Callable[..., torch.Tensor]


def faults(case: Case) -> Iterator[Fault]:
    """Every wrong gradient that can show in `case`."""
    if not case.has_backward:
        return
    group = case.heads // case.kv_heads
    yield fault("gradient", "a backward without delta (dS = P dP)", delta=lambda s, O: torch.zeros_like(O[..., :1]))
    yield fault(
        "gradient", "a backward that adds delta instead of subtracting it", delta=lambda s, O: -Attention.delta(s, O)
    )
    if case.scale is None or case.scale != 1.0:
        yield fault("gradient", "dK without the scale", dK=lambda s, dS: dS.transpose(-1, -2) @ s.queries())
        yield fault("gradient", "dQ without the scale", dQ=lambda s, dS: dS @ s.keys)
        yield fault("gradient", "dK with the scale applied twice", dK=lambda s, dS: Attention.dK(s, dS) * s.scale())
        yield fault("gradient", "dQ with the scale applied twice", dQ=lambda s, dS: Attention.dQ(s, dS) * s.scale())
    if case.scale is not None and case.scale != case.d**-0.5:
        usual = case.d**-0.5
        yield fault(
            "gradient",
            "a backward that multiplies dQ and dK by 1/sqrt(d) and not by the scale it was given",
            dQ=lambda s, dS: dS @ s.keys * usual,
            dK=lambda s, dS: dS.transpose(-1, -2) @ s.queries() * usual,
        )
    if case.Nq and case.Nk > case.Nq:
        yield fault(
            "gradient",
            "dK and dV of only the first Nq of the Nk keys",
            over_group=lambda s, x: _first_rows(Attention.over_group(s, x), case.Nq),
        )
    for tile in TILES:
        for index in sorted({0, 1, (case.Nk - 1) // tile}) if case.Nk > tile else ():
            keys = slice(index * tile, (index + 1) * tile)
            yield fault("gradient", f"dQ without key tile {index} of {tile}", dQ=_without_keys(keys))
            words = f"dK and dV of key tile {index} of {tile} that were never written (0)"
            yield fault("gradient", words, over_group=_no_rows(keys))
    yield fault("gradient", "dQ accumulated twice", dQ=lambda s, dS: 2 * Attention.dQ(s, dS))
    yield fault("gradient", "dK and dV accumulated twice", over_group=lambda s, x: 2 * Attention.over_group(s, x))
    if not case.mask.is_full:
        yield fault("gradient", "a backward without the mask", backward_weights=_under(lambda m: Mask(m.Nq, m.Nk)))
        if case.Nq != case.Nk:
            yield fault(
                "gradient", "a backward whose mask has the other alignment", backward_weights=_under(_other_alignment)
            )
    if case.causal:
        yield fault("gradient", "a backward that leaves out the diagonal", backward_weights=_without_diagonal)
    if group > 1:
        for words, index in (("first", 0), ("last", group - 1)):
            yield fault("gradient", f"dK and dV of only the {words} query head of a group", over_group=_one_head(index))
        yield fault(
            "gradient", "dK and dV averaged over the group", over_group=lambda s, x: Attention.over_group(s, x) / group
        )
    if case.softcap:
        yield fault("gradient", "a backward without the derivative of the softcap", slope=lambda s: 1.0)
    yield fault("gradient", "a backward that reads dO as if it were contiguous", gradient=_as_contiguous)


def _without_keys(keys: slice) -> Step:
    def dQ(self: Attention, dS: torch.Tensor) -> torch.Tensor:
        dS = dS.clone()
        dS[..., keys] = 0.0
        return Attention.dQ(self, dS)

    return dQ


def _no_rows(keys: slice) -> Step:
    def over_group(self: Attention, x: torch.Tensor) -> torch.Tensor:
        summed = Attention.over_group(self, x).clone()
        summed[:, :, keys] = 0.0
        return summed

    return over_group


def _first_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    kept = x.clone()
    kept[:, :, rows:] = 0.0
    return kept


def _under(change: Callable[[Mask], Mask]) -> Step:
    """exp(S - LSE) with the right LSE and another mask."""

    def weights(self: Attention, P: torch.Tensor) -> torch.Tensor:
        _, lse = self.softmax(self.scores())
        S, cap = self.uncapped, self.softcap()
        S = cap * torch.tanh(S / cap) if cap else S
        shown = pairs(change(self.case.mask), S.device)
        lse = torch.where(lse == -torch.inf, torch.inf, lse)
        return torch.exp(S.masked_fill(~shown, -torch.inf) - lse[..., None])

    return weights


def _other_alignment(m: Mask) -> Mask:
    return Mask(m.Nq, m.Nk, m.causal, "top_left" if m.alignment == "bottom_right" else "bottom_right", m.window)


def _without_diagonal(self: Attention, P: torch.Tensor) -> torch.Tensor:
    Nq, Nk = P.shape[-2:]
    rows, keys = torch.arange(Nq, device=P.device)[:, None], torch.arange(Nk, device=P.device)
    return P.masked_fill(keys == rows + self.case.mask.offset, 0.0)


def _one_head(index: int) -> Step:
    def over_group(self: Attention, x: torch.Tensor) -> torch.Tensor:
        return self.by_group(x)[:, :, index]

    return over_group


def _as_contiguous(self: Attention) -> torch.Tensor:
    """The numbers that lie at a contiguous tensor's places, as far as the storage goes."""
    dO = self.p.low.dO
    assert dO is not None
    flat = torch.empty(0, dtype=dO.dtype, device=dO.device).set_(dO.untyped_storage())[dO.storage_offset() :]
    read = torch.zeros(dO.numel(), dtype=torch.float64, device=dO.device)
    count = min(len(flat), dO.numel())
    read[:count] = flat[:count].to(torch.float64)
    return read.view(dO.shape)
