"""Scores of one tile: scale, softcap, mask, in that order."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.reference.positions import Positions, visible
from fabench.reference.rounding import Model, exactly


@dataclass
class Scores:
    """S [heads, rows, keys] with -inf where masked, and its slope by the uncapped score (None is 1)."""

    S: torch.Tensor
    slope: torch.Tensor | None


class Tile:
    """The q rows and k rows of one tile; scores by model, sharing what the models have in common."""

    def __init__(self, case: Case, q: torch.Tensor, k: torch.Tensor, rows: Positions, keys: Positions) -> None:
        """q [heads, rows, d] and k [heads, keys, d] in fp64."""
        self.case, self.q, self.k, self.keys = case, q, k, keys
        self.shown = visible(case.mask, rows, keys)
        self._product: torch.Tensor | None = None
        self._plain: Scores | None = None

    def scores(self, model: Model) -> Scores:
        """S as `model` computes it. The result is shared: do not change it in place."""
        if model.operand is exactly and model.score is exactly:
            if self._plain is None:
                self._plain = self._finish(self.product, model)
            return self._plain
        product = self.product
        if model.operand is not exactly:
            product = _product(model.operand(self.q), model.operand(self.k), self.case)
        return self._finish(model.score(product), model)

    @property
    def product(self) -> torch.Tensor:
        """scale · q kᵀ, exact."""
        if self._product is None:
            self._product = _product(self.q, self.k, self.case)
        return self._product

    def _finish(self, x: torch.Tensor, model: Model) -> Scores:
        slope = None
        if self.case.softcap:
            t = model.score(torch.tanh(model.score(x / self.case.softcap)))
            x, slope = model.score(self.case.softcap * t), 1.0 - t * t
        return Scores(x if self.shown is None else x.masked_fill(~self.shown, -torch.inf), slope)


def _product(q: torch.Tensor, k: torch.Tensor, case: Case) -> torch.Tensor:
    return (q @ k.transpose(-1, -2)).mul_(case.softmax_scale)
