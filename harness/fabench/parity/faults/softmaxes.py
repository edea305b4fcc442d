"""Wrong softmaxes: pad keys counted, no rescaling between tiles, no division, a maximum that starts at 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from fabench.case import Case
from fabench.parity.faults.dense import Attention, Fault, Problem, fault
from fabench.text import counted

TILES = (16, 32, 64, 128, 256)
Softmax = Callable[[Attention, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def faults(case: Case) -> Iterator[Fault]:
    """Every wrong softmax that can show in `case`."""
    if not case.Nk:
        return
    for tile in TILES:
        if pad := -case.Nk % tile:
            yield fault(
                "softmax",
                f"a kernel that counts the {counted(pad, 'key')} of padding to a multiple of {tile} (score 0, V = 0)",
                softmax=_padded(pad),
            )
        if case.Nk > tile:
            words = f"an online softmax over tiles of {tile} that "
            yield fault(
                "softmax", words + "does not rescale O when the maximum grows", softmax=_tiled(tile, True, False)
            )
            yield fault(
                "softmax", words + "does not rescale l when the maximum grows", softmax=_tiled(tile, False, True)
            )
            yield fault("softmax", words + "rescales neither O nor l", softmax=_tiled(tile, False, False))
            yield fault("softmax", words + "normalises each tile by itself", softmax=_each_tile(tile))
            words = f"a kernel whose tiles of {tile} overlap by one key, which counts twice"
            yield fault("softmax", words, softmax=_twice(slice(tile, None, tile)))
    yield fault("softmax", "attention that counts the last key twice", softmax=_twice(slice(-1, None)))
    yield fault("softmax", "attention that counts the first key twice", softmax=_twice(slice(0, 1)))
    yield fault("softmax", "a softmax with one more key of score 0 and V = 0 (1 + the sum)", softmax=_padded(1))
    yield fault("softmax", "a sum of V that is not divided by l", softmax=_undivided)
    yield fault("softmax", "an online softmax whose maximum starts at 0 instead of -inf", softmax=_clamped(0.0))
    for sentinel in (-1e4, -5e4):
        yield fault(
            "softmax", f"a kernel that writes {sentinel:g} where it should write -inf", softmax=_sentinel(sentinel)
        )
    yield fault("softmax", "a softmax over queries instead of keys", softmax=_over_queries)
    yield fault("softmax", "the scores themselves, without a softmax", softmax=_scores)


def fitted(problem: Problem, got: torch.Tensor, rows: torch.Tensor) -> Iterator[Fault]:
    """The epsilon beside l that makes `rows` [batch, heads, Nq] of a wrong O as much too short as they are."""
    right = Attention(problem)
    S = right.scores()
    if not S.shape[-1] or not bool(torch.isfinite(got[rows]).all()):
        return
    l = torch.exp(S - _finite(S.amax(-1))[..., None]).sum(-1)[rows]
    O = right.output(right.softmax(S)[0])[rows]
    share = (got[rows] * O).sum(-1) / O.square().sum(-1)
    epsilon = float((l * (1.0 / share - 1.0)).nanmedian())
    if math.isfinite(epsilon) and epsilon > 0:
        words = f"{epsilon:.1g}"
        yield fault("softmax", f"a division by l + {words}: an epsilon that is felt", softmax=_beside_l(float(words)))


def _beside_l(epsilon: float) -> Softmax:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = S.amax(-1)
        E = torch.exp(S - _finite(m)[..., None])
        _, lse = Attention.softmax(self, S)
        return E / (E.sum(-1) + epsilon)[..., None], lse

    return softmax


def _finite(m: torch.Tensor) -> torch.Tensor:
    return torch.where(m == -torch.inf, 0.0, m)


def _weights(E: torch.Tensor, l: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return E / torch.where(l != 0, l, 1.0)[..., None], _finite(m) + torch.log(l)


def _padded(pad: int) -> Softmax:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = S.amax(-1).clamp(min=0.0)
        E = torch.exp(S - m[..., None])
        return _weights(E, E.sum(-1) + pad * torch.exp(-m), m)

    return softmax


def _tiled(tile: int, rescale_l: bool, rescale_O: bool) -> Softmax:
    """Tile t contributes exp(S - running max at t), which a right kernel brings to the final maximum."""

    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = S.amax(-1)
        running = torch.full_like(last, -torch.inf)
        own, final = [], []
        for start in range(0, S.shape[-1], tile):
            part = S[..., start : start + tile]
            running = torch.maximum(running, part.amax(-1))
            own.append(torch.exp(part - _finite(running)[..., None]))
            final.append(torch.exp(part - _finite(last)[..., None]))
        in_O, in_l = (torch.cat(final if right else own, -1) for right in (rescale_O, rescale_l))
        return _weights(in_O, in_l.sum(-1), last)

    return softmax


def _twice(keys: slice) -> Softmax:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        S = S.clone()
        S[..., keys] += math.log(2)
        return Attention.softmax(self, S)

    return softmax


def _each_tile(tile: int) -> Softmax:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, lse = Attention.softmax(self, S)
        parts = [Attention.softmax(self, S[..., i : i + tile])[0] for i in range(0, S.shape[-1], tile)]
        return torch.cat(parts, -1), lse

    return softmax


def _undivided(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _, lse = Attention.softmax(self, S)
    return torch.exp(S - _finite(S.amax(-1))[..., None]), lse


def _clamped(floor: float) -> Softmax:
    """The maximum never falls below `floor`; in fp32 exp(S - floor) vanishes below -103."""

    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = S.amax(-1).clamp(min=floor)
        E = torch.exp((S - m[..., None]).float()).double()
        return _weights(E, E.sum(-1), m)

    return softmax


def _sentinel(value: float) -> Softmax:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return Attention.softmax(self, S.clamp(min=value))

    return softmax


def _over_queries(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _, lse = Attention.softmax(self, S)
    P, _ = Attention.softmax(self, S.transpose(-1, -2))
    return P.transpose(-1, -2), lse


def _scores(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _, lse = Attention.softmax(self, S)
    return torch.where(torch.isfinite(S), S, 0.0), lse
