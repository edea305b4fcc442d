"""Kernels with a right O and a wrong LSE."""

from __future__ import annotations

import math

import torch

from mutants.kernel import Kernel


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
