"""Softmax and output of a block of query rows, exactly and as each accuracy class would: two passes over the keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fabench.reference.merge import State, finite, merge
from fabench.reference.positions import Positions, hides_all
from fabench.reference.problem import Problem, take
from fabench.reference.rounding import EXACT, Model, score_spread
from fabench.reference.scores import Tile

Family = tuple[Model, ...]
"""Models whose scores are the same numbers, so that they share m, l and exp."""


def families(models: Sequence[Model]) -> list[Family]:
    """Group the exact pass and the models by what their scores are; the exact family comes first."""
    groups: dict[object, list[Model]] = {}
    for model in (EXACT, *models):
        groups.setdefault(model.score_roundings, []).append(model)
    return [tuple(group) for group in groups.values()]


class Forward:
    """The forward pass of one block of rows [heads, rows], every model at once.

    After construction: `lse[family]`, `O[model]` (rounded as the model's output), and of the exact pass
    `squares` = Σ P² V² by channel, `Bv` = (Σ P|V - O|²)^½, `reach` = max |q||k| over attended keys, and
    `score_error[family]`, a bound on the error of the family's scores. `weighted` is (Σ P²S²|V|²)^½: what errors
    relative to the scores, as of class B, do to O. `late[model]` is what O is off by where P is rounded after the
    division by l and not before: with equal weights all of them are then rounded the same way.
    """

    def __init__(self, problem: Problem, heads: slice, rows: Positions, q: torch.Tensor, groups: list[Family]) -> None:
        """q [heads, rows, d] in fp64, its positions `rows` already folded."""
        self.problem, self.heads, self.rows, self.q, self.groups = problem, heads, rows, q, groups
        self.states = self._softmax()
        self.lse = {family: state.lse for family, state in self.states.items()}
        self._outputs()

    def tiles(self) -> Iterator[tuple[Tile, torch.Tensor, torch.Tensor]]:
        """The key tiles that hold an attended pair, with k and v in fp64."""
        case = self.problem.case
        for keys in self.problem.key_tiles():
            if not hides_all(case.mask, self.rows, keys):
                k, v = (take(x, self.heads, keys) for x in (self.problem.k, self.problem.v))
                yield Tile(case, self.q, k, self.rows, keys), k, v

    def _softmax(self) -> dict[Family, State]:
        """First pass: m and l by the online merge, and how far each family's scores may be off."""
        shape = tuple(self.q.shape[:2])
        states = {family: State.empty(shape, 0, self.q) for family in self.groups}
        self.score_error = {family: self.q.new_zeros(shape) for family in self.groups}
        self.reach = self.q.new_zeros(shape)
        for tile, k, _ in self.tiles():
            exact = tile.scores(EXACT).S
            norms = k.norm(dim=-1)[:, None, :]
            longest = norms if tile.shown is None else torch.where(tile.shown, norms, 0.0)
            self.reach = torch.maximum(self.reach, longest.amax(-1).expand(shape))
            for family in self.groups:
                S = tile.scores(family[0]).S
                states[family] = merge(states[family], State.of(S))
                if family[0] is EXACT:
                    continue
                # Twice the emulated error: tensor cores may truncate where the model rounds to nearest.
                error = 2.0 * (S - exact).abs() + (family[0].unit * exact.abs() if family[0].accuracy == "B" else 0.0)
                error = torch.where(exact == -torch.inf, 0.0, error)
                self.score_error[family] = torch.maximum(self.score_error[family], error.amax(-1))
        self.reach = self.reach * self.q.norm(dim=-1)
        return states

    def _outputs(self) -> None:
        """Second pass: P, O, and the sums the tolerance is made of."""
        shape, dv = self.q.shape[:2], self.problem.v.shape[-1]
        sums = {model: self.q.new_zeros((*shape, dv)) for family in self.groups for model in family}
        late = {m: torch.zeros_like(x) for m, x in sums.items() if m is not EXACT and not m.normalised}
        squares, spread, weighted = self.q.new_zeros((*shape, dv)), self.q.new_zeros(shape), self.q.new_zeros(shape)
        divisors = {family: torch.where(s.l > 0, s.l, 1.0)[..., None] for family, s in self.states.items()}
        for tile, _, v in self.tiles():
            v_squared = v.square()
            norms = v_squared.sum(-1, keepdim=True)
            for family in self.groups:
                S = tile.scores(family[0]).S
                E = torch.exp(S - finite(self.states[family].m)[..., None])
                for model in family:
                    P = model.P(E / divisors[family] if model.normalised else E)
                    sums[model] += P @ model.operand(v)
                    if model in late:
                        late[model] += model.P(E / divisors[family]) @ model.operand(v)
                if family[0] is EXACT:
                    sigma = score_spread(S, E / divisors[family], self.states[family].lse, self.problem.case)
                    spread += (E @ norms)[..., 0]
                    squares += E.square_() @ v_squared
                    weighted += (E.mul_(sigma.square_()) @ norms)[..., 0]
        self.O = {
            model: model.out(sums[model] if model.normalised else sums[model] / divisors[family])
            for family in self.groups
            for model in family
        }
        self.late = {model: (model.out(x) - self.O[EXACT]).norm(dim=-1) for model, x in late.items()}
        l = divisors[self.groups[0]]
        self.squares = squares / l.square()
        self.weighted = weighted.sqrt() / l[..., 0]
        self.Bv = (spread / l[..., 0] - self.O[EXACT].square().sum(-1)).clamp(min=0.0).sqrt()
