"""Scores of one tile: scale, softcap, mask, in that order."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.reference.positions import Positions, visible
from fabench.reference.rounding import EXACT, Model


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
        self._exact: Scores | None = None

    def scores(self, model: Model) -> Scores:
        """S as `model` computes it. The result is shared: do not change it in place."""
        if model.score_roundings != EXACT.score_roundings:
            return self._finish(model.score(self._product(model)), model)
        if self._exact is None:
            self._exact = self._finish(self._product(EXACT), EXACT)
        return self._exact

    def _product(self, model: Model) -> torch.Tensor:
        """scale · q kᵀ, the scale taken into q."""
        q = model.scaled(model.operand(self.q) * self.case.softmax_scale)
        return q @ model.operand(self.k).transpose(-1, -2)

    def _finish(self, x: torch.Tensor, model: Model) -> Scores:
        slope = None
        if self.case.softcap:
            t = model.score(torch.tanh(model.score(x / self.case.softcap)))
            x, slope = model.score(self.case.softcap * t), 1.0 - t * t
        return Scores(x if self.shown is None else x.masked_fill(~self.shown, -torch.inf), slope)
