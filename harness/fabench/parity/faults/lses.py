"""Wrong LSEs beside a right O: other units, or one of the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from fabench.case import Case
from fabench.parity.faults.dense import Attention, Fault, fault

Lse = Callable[[Attention, torch.Tensor, torch.Tensor], torch.Tensor]


def faults(case: Case) -> Iterator[Fault]:
    """Every wrong LSE that can show in `case`."""
    if not case.Nk or not case.softmax_scale:
        return
    for sentence, of in (
        ("LSE of the scores before they are scaled", lambda a, m, l: torch.logsumexp(_unscaled(a), -1)),
        ("LSE divided by the scale", lambda a, m, l: (m + torch.log(l)) / a.scale()),
        ("LSE multiplied by the scale", lambda a, m, l: (m + torch.log(l)) * a.scale()),
        ("m + ln l with the maximum m of the scores before they are scaled", _unscaled_maximum),
        ("m + ln l with m in base 2", lambda a, m, l: m / math.log(2) + torch.log(l)),
        ("m + log2 l, with l in base 2 only", lambda a, m, l: m + torch.log2(l)),
        ("the maximum m alone, without ln l", lambda a, m, l: m),
        ("ln l alone, without the maximum m", lambda a, m, l: torch.log(l)),
        ("l alone, without its logarithm", lambda a, m, l: l),
        ("m - ln l", lambda a, m, l: m - torch.log(l)),
        ("exp(LSE)", lambda a, m, l: torch.exp(m) * l),
    ):
        yield fault("lse", sentence, softmax=_with(of))
    if case.softcap:
        yield fault(
            "lse", "LSE of the scores before the softcap", softmax=_with(lambda a, m, l: torch.logsumexp(_bare(a), -1))
        )


def _with(of: Lse) -> Callable[[Attention, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        P, right = Attention.softmax(self, S)
        m = S.amax(-1)
        l = torch.exp(S - torch.where(m == -torch.inf, 0.0, m)[..., None]).sum(-1)
        return P, torch.where(right == -torch.inf, right, of(self, m, l))

    return softmax


def _bare(a: Attention) -> torch.Tensor:
    return a.uncapped.masked_fill(~a.mask, -torch.inf)


def _unscaled(a: Attention) -> torch.Tensor:
    return (a.uncapped / a.scale()).masked_fill(~a.mask, -torch.inf)


def _unscaled_maximum(a: Attention, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
    return _unscaled(a).amax(-1) + torch.log(l)
