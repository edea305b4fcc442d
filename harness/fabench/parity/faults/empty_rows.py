"""Wrong answers for queries that attend to no key, whose O must be 0 and whose LSE -inf."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fabench.case import Case
from fabench.parity.bench import shown_pairs
from fabench.parity.faults.dense import Attention, Fault, fault

Softmax = Callable[[Attention, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def faults(case: Case) -> Iterator[Fault]:
    """What a softmax without a word for empty rows makes of them."""
    if case.Nk and bool((~shown_pairs(case, torch.device("cpu")).any(1)).any()):
        words = "a softmax that is NaN (0/0) for queries without a key"
        yield fault("empty", words, softmax=_with(lambda S: torch.full_like(S, torch.nan)))
        words = "a finite number in the place of -inf: queries without a key get the mean of V"
        yield fault("empty", words, softmax=_with(lambda S: torch.full_like(S, 1.0 / S.shape[-1])))
        words = "a finite number added in the place of -inf: queries without a key see the keys that are masked"
        yield fault("empty", words, softmax=_with_scores)


def _with(weights: Callable[[torch.Tensor], torch.Tensor]) -> Softmax:
    """The right softmax, with other weights in rows without keys."""

    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        P, lse = Attention.softmax(self, S)
        return torch.where((lse == -torch.inf)[..., None], weights(P), P), lse

    return softmax


def _with_scores(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    P, lse = Attention.softmax(self, S)
    return torch.where((lse == -torch.inf)[..., None], torch.softmax(self.uncapped, -1), P), lse
