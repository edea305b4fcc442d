"""Gradients of one tile, exactly and as each accuracy class would: dV = Pᵀ dO, dS = P (dP - delta), dQ, dK from dS."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fabench.reference.forward import Forward
from fabench.reference.merge import finite
from fabench.reference.rounding import EXACT, Model, score_spread
from fabench.reference.scores import Tile


@dataclass
class RowGradient:
    """What the backward adds up for a block of query rows [heads, rows, d].

    dQ by model (before the scale), Σ W² K² by channel (A(dQ)² over s²), the same with S² in the sum, the same before
    the softcap's slope, and Σ P K: an error of delta is common to all keys of a row, so it reaches dQ through this sum
    whole, where independent errors add in quadrature.
    """

    dQ: dict[Model, torch.Tensor]
    squares: torch.Tensor
    weighted: torch.Tensor
    flat: torch.Tensor
    mean_key: torch.Tensor


@dataclass
class KeyGradient:
    """What it adds up for a set of keys.

    DK (before the scale) and dV by model, their squares by channel, those with S² in the sum, dK's before the softcap's
    slope, and the longest query.
    """

    dK: dict[Model, torch.Tensor]
    dV: dict[Model, torch.Tensor]
    squares_dK: torch.Tensor
    squares_dV: torch.Tensor
    weighted_dK: torch.Tensor
    weighted_dV: torch.Tensor
    flat_dK: torch.Tensor
    reach: torch.Tensor

    @classmethod
    def zeros(cls, models: list[Model], shape: tuple[int, ...], d: int, dv: int, device: torch.device) -> KeyGradient:
        """Sums not yet begun, for keys of `shape` [heads, keys]."""

        def zeros(*more: int) -> torch.Tensor:
            return torch.zeros((*shape, *more), dtype=torch.float64, device=device)

        return cls(
            {m: zeros(d) for m in models},
            {m: zeros(dv) for m in models},
            zeros(d),
            zeros(dv),
            zeros(),
            zeros(),
            zeros(),
            zeros(),
        )

    def add(self, heads: slice, keys: slice, other: KeyGradient) -> None:
        """Add the sums of one tile to the keys it holds."""
        for model, sums in self.dK.items():
            sums[heads, keys] += other.dK[model]
            self.dV[model][heads, keys] += other.dV[model]
        for name in ("squares_dK", "squares_dV", "weighted_dK", "weighted_dV", "flat_dK"):
            getattr(self, name)[heads, keys] += getattr(other, name)
        self.reach[heads, keys] = torch.maximum(self.reach[heads, keys], other.reach)


class Backward:
    """The backward of one block of rows: delta by model once, then tile by tile."""

    def __init__(self, forward: Forward, dO: torch.Tensor, copies: torch.Tensor | float = 1.0) -> None:
        """DO [heads, rows, dv] in fp64 for the rows of `forward`; `copies` [heads, rows, 1] of a row's q and dO."""
        self.forward, self.dO, self.copies = forward, dO, copies
        O = forward.O[EXACT]
        self.delta = {model: (dO * O_model).sum(-1, keepdim=True) for model, O_model in forward.O.items()}
        self.delta_rounding = (O * dO).square().sum(-1, keepdim=True).sqrt()

    def tile(
        self, tile: Tile, k: torch.Tensor, v: torch.Tensor, copies: torch.Tensor | float = 1.0
    ) -> tuple[RowGradient, KeyGradient]:
        """The contributions of one tile of keys to dQ and to dK, dV; `copies` [heads, keys, 1] of a key's k and v."""
        dQ: dict[Model, torch.Tensor] = {}
        dK: dict[Model, torch.Tensor] = {}
        dV: dict[Model, torch.Tensor] = {}
        for family in self.forward.groups:
            scores = tile.scores(family[0])
            P = torch.exp(scores.S - finite(self.forward.lse[family])[..., None])
            operand = family[0].operand
            dO, q_, k_ = operand(self.dO), operand(tile.q), operand(k)
            dP = dO @ operand(v).transpose(-1, -2)
            for model in family:
                P_model = model.P(P)
                dS = (P_model if model.normalised else P) * (model.dP(dP) - self.delta[model])
                dS = model.dS(dS if scores.slope is None else dS * scores.slope)
                dQ[model] = dS @ k_
                dK[model] = dS.transpose(-1, -2) @ q_
                dV[model] = P_model.transpose(-1, -2) @ dO
            if family[0] is EXACT:
                W = P * (dP.abs_().add_(self.delta[EXACT].abs()).add_(self.delta_rounding))
                flat = None if scores.slope is None else W.square()
                W = (W if scores.slope is None else W * scores.slope).square_()
                mean_key = (P if scores.slope is None else P * scores.slope) @ k
                S2 = score_spread(scores.S, P, self.forward.lse[family], tile.case).square_()
                P2 = P.square_()
        # m equal terms have equal errors: they add up to m of them, which is sqrt(m) times what quadrature gives.
        k2, q2, dO2 = k.square() * copies, tile.q.square() * self.copies, self.dO.square() * self.copies
        squares_dQ, squares_dK, squares_dV = W @ k2, W.transpose(-1, -2) @ q2, P2.transpose(-1, -2) @ dO2
        k_norms, q_norms = k2.sum(-1, keepdim=True), q2.sum(-1, keepdim=True)
        flat_dQ, flat_dK = q2.new_zeros(q2.shape[:2]), k2.new_zeros(k2.shape[:2])
        if flat is not None:
            flat_dQ, flat_dK = (flat @ k_norms)[..., 0], (flat.transpose(-1, -2) @ q_norms)[..., 0]
        W, P2 = W.mul_(S2), P2.mul_(S2)
        weighted_dQ = (W @ k_norms)[..., 0]
        weighted_dK = (W.transpose(-1, -2) @ q_norms)[..., 0]
        weighted_dV = (P2.transpose(-1, -2) @ dO2.sum(-1, keepdim=True))[..., 0]
        norms = tile.q.norm(dim=-1)[..., None]
        longest = norms if tile.shown is None else torch.where(tile.shown, norms, 0.0)
        reach = longest.amax(1).expand(k.shape[:2])
        by_row = RowGradient(dQ, squares_dQ, weighted_dQ, flat_dQ, mean_key)
        return by_row, KeyGradient(dK, dV, squares_dK, squares_dV, weighted_dK, weighted_dV, flat_dK, reach)
