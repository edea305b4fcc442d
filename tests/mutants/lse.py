"""Kernels with a right O and a wrong LSE."""

from __future__ import annotations

import math
from typing import Any

import torch

from mutants.kernel import Call, Kernel


class LseBase2(Kernel):
    def returned_lse(self, lse: torch.Tensor) -> torch.Tensor:
        return lse / math.log(2)


class LsePlusInf(Kernel):
    def returned_lse(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.masked_fill(lse == -math.inf, math.inf)


class LseNegated(Kernel):
    def returned_lse(self, lse: torch.Tensor) -> torch.Tensor:
        return -lse


class LseFiniteWhenEmpty(Kernel):
    def returned_lse(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.clamp(min=-1e30)


class LseMaximumOnly(Kernel):
    def lse(self, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
        return m


class LseInTwoBases(Kernel):
    """exp2 in the loop: the maximum stays in base 2, the sum does not."""

    def lse(self, m: torch.Tensor, l: torch.Tensor) -> torch.Tensor:
        return m * 1.4426950408889634 + torch.log(l)


class LseOfRawProducts(Kernel):
    """What is saved beside O never saw the scale."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, _ = super().forward(q, k, v, call)
        raw = torch.einsum("bhid,bhjd->bhij", q.float(), k[:, self.kv_of(q.shape[1], k.shape[1])].float())
        hidden = self.hidden(torch.arange(q.shape[2]), torch.arange(k.shape[2]), call)
        return O, raw.masked_fill(hidden, -math.inf).logsumexp(-1)


class LseOverScale(Kernel):
    """The scale is taken out again at the end, and too much with it."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        O, LSE = super().forward(q, k, v, call)
        return O, LSE * q.shape[-1] ** 0.5
