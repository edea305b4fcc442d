"""The reference itself: drives the passes over heads, rows and keys and turns their sums into `Expected`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch

from fabench.case import Case, Mask
from fabench.dtypes import DTYPES
from fabench.inputs import Tensors
from fabench.names import Accuracy
from fabench.reference.backward import Backward, KeyGradient
from fabench.reference.forward import Family, Forward, families
from fabench.reference.positions import Positions, hides_all
from fabench.reference.problem import Problem, copies, folded, most, take
from fabench.reference.result import Expected, Reference
from fabench.reference.rounding import EXACT, model
from fabench.reference.sampling import sampled_rows
from fabench.reference.scores import Tile
from fabench.reference.tolerance import (
    EXP_FLUSH,
    FP32_SCORE_ERROR,
    FP32_UNIT,
    LSE_ROUNDING,
    expected,
    length_of,
    longest_of,
    norm_of,
)
from fabench.reference_time import SAMPLE

Rows = Literal["full", "sampled"]


def compute(
    case: Case,
    tensors: Tensors,
    *,
    accuracy: Sequence[Accuracy] = ("A", "B"),
    rows: Rows = "full",
    device: str | torch.device | None = None,
) -> Reference:
    """The expected outputs of `case` on `tensors`, in fp64 and O(N) memory (Dao 2023, 2307.08691, §3.1).

    `accuracy` names the classes a tolerance is wanted for (docs/parity.md). `rows="sampled"` keeps 512 rows a head,
    each still exact over all keys; its dK and dV cost a pass over all rows. Raises nothing for a valid case.
    """
    started = time.perf_counter()
    where = torch.device(device) if device is not None else tensors.q.device
    with torch.no_grad():
        outputs = _Oracle(case, tensors, accuracy, rows == "sampled", where).run()
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    sampled = rows == "sampled" and max(case.Nq, case.Nk) > SAMPLE
    return Reference(case, outputs, sampled, time.perf_counter() - started)


class _Oracle:
    """One computation: flat results [kv, group, rows, ·] and [kv, keys, ·] filled block by block."""

    def __init__(
        self, case: Case, tensors: Tensors, accuracy: Sequence[Accuracy], sampled: bool, device: torch.device
    ) -> None:
        self.case, self.device = case, device
        self.problem = Problem.of(case, tensors, device)
        self.models = [model(name, case.dtype) for name in accuracy]
        self.groups: list[Family] = families(self.models)
        self.all_models = [EXACT, *self.models]
        kv, group = self.problem.q.shape[:2]
        self.rows = self.keys = None
        if sampled and case.Nq > SAMPLE:
            self.rows = sampled_rows(case.Nq, kv * group, case.seed).to(device).view(kv, -1)
        if sampled and case.Nk > SAMPLE:
            self.keys = sampled_rows(case.Nk, kv, case.seed + 1).to(device)
        self.row_shape = (kv, group, case.Nq if self.rows is None else SAMPLE)
        self.key_shape = (kv, case.Nk if self.keys is None else SAMPLE)
        self.scale = abs(case.softmax_scale)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def run(self) -> dict[str, Expected]:
        """Every output of the case."""
        case, rows = self.case, self.row_shape
        self.O = {m: self._zeros(*rows, case.dv) for m in self.all_models}
        self.lse, self.Bv, self.reach, self.weighted = (self._zeros(*rows) for _ in range(4))
        self.squares = self._zeros(*rows, case.dv)
        self.score_error = {m: self._zeros(*rows) for m in self.models}
        self.late = {m: self._zeros(*rows) for m in self.models if not m.normalised}
        gradients = None
        if case.has_backward:
            self.dQ = {m: self._zeros(*rows, case.d) for m in self.all_models}
            self.squares_dQ = self._zeros(*rows, case.d)
            self.weighted_dQ, self.flat_dQ, self.delta_error = (self._zeros(*rows) for _ in range(3))
            gradients = KeyGradient.zeros(self.all_models, self.key_shape, case.d, case.dv, self.device)
        for heads in self.problem.chunks():
            for block, out in self._row_blocks(heads):
                forward = self._forward(heads, block)
                self._store_forward(forward, heads, out)
                if gradients is not None:
                    self._rows_backward(forward, heads, block, out, gradients if self._keys_with_rows else None)
            if gradients is not None and not self._keys_with_rows:
                self._keys_backward(heads, gradients)
        outputs = self._forward_outputs()
        return outputs if gradients is None else outputs | self._gradient_outputs(gradients)

    @property
    def _keys_with_rows(self) -> bool:
        """True if the blocks of rows are all rows and the keys all keys, so that dK and dV come with dQ."""
        return self.rows is None and self.keys is None

    def _row_blocks(self, heads: slice) -> list[tuple[Positions, slice]]:
        """Blocks of query positions to check, and where their rows go in the results."""
        if self.rows is None:
            return [(p, p.slice) for p in self.problem.row_tiles()]
        chosen = self.rows[heads]
        return [(Positions(chosen, int(chosen.min()), int(chosen.max())), slice(0, SAMPLE))]

    def _forward(self, heads: slice, block: Positions) -> Forward:
        q = take(self.problem.q, heads, block)
        return Forward(self.problem, heads, folded(block, self.problem.group), q, self.groups)

    def _store_forward(self, forward: Forward, heads: slice, out: slice) -> None:
        def store(into: torch.Tensor, value: torch.Tensor) -> None:
            part = into[heads, :, out]
            part.copy_(value.view(part.shape))

        for m, O in forward.O.items():
            store(self.O[m], O)
        store(self.lse, forward.lse[self.groups[0]])
        for name in ("squares", "Bv", "reach", "weighted"):
            store(getattr(self, name), getattr(forward, name))
        for m, error in forward.late.items():
            store(self.late[m], error)
        for family in self.groups:
            for m in family:
                if m is not EXACT:
                    store(self.score_error[m], forward.score_error[family])

    def _backward(self, forward: Forward, heads: slice, block: Positions) -> Backward:
        assert self.problem.dO is not None
        return Backward(forward, take(self.problem.dO, heads, block), copies(self.problem.row_copies, heads, block))

    def _rows_backward(
        self, forward: Forward, heads: slice, block: Positions, out: slice, gradients: KeyGradient | None
    ) -> None:
        """DQ of a block of rows; dK and dV too where every row and key is wanted."""
        backward = self._backward(forward, heads, block)
        mean_key = torch.zeros_like(forward.q)
        for tile, k, v in forward.tiles():
            by_row, by_key = backward.tile(tile, k, v, copies(self.problem.key_copies, heads, tile.keys))
            for m, dQ in by_row.dQ.items():
                part = self.dQ[m][heads, :, out]
                part += dQ.view(part.shape)
            for into, sums in (
                (self.squares_dQ, by_row.squares),
                (self.weighted_dQ, by_row.weighted),
                (self.flat_dQ, by_row.flat),
            ):
                part = into[heads, :, out]
                part += sums.view(part.shape)
            mean_key += by_row.mean_key
            if gradients is not None:
                gradients.add(heads, tile.keys.slice, by_key)
        part = self.delta_error[heads, :, out]
        part.copy_((backward.delta_rounding[..., 0] * mean_key.norm(dim=-1)).view(part.shape))

    def _keys_backward(self, heads: slice, gradients: KeyGradient) -> None:
        """DK and dV of sampled keys: every block of rows again, for its LSE and delta, against those keys alone."""
        if self.keys is None:
            keys = Positions.span(0, self.case.Nk, self.device)
        else:
            chosen = self.keys[heads]
            keys = Positions(chosen, int(chosen.min()), int(chosen.max()))
        k, v = (take(x, heads, keys) for x in (self.problem.k, self.problem.v))
        for block in self.problem.row_tiles():
            rows = folded(block, self.problem.group)
            if hides_all(self.case.mask, rows, keys):
                continue
            forward = self._forward(heads, block)
            backward = self._backward(forward, heads, block)
            _, by_key = backward.tile(Tile(self.case, forward.q, k, rows, keys), k, v)
            gradients.add(heads, slice(0, k.shape[1]), by_key)

    def _forward_outputs(self) -> dict[str, Expected]:
        B, H = self.case.batch, self.case.heads
        count = self._attended(self.case.mask, self.rows, self.row_shape)
        norm_v = norm_of(self.problem.v.flatten(1))[:, None, None]
        score = FP32_SCORE_ERROR * self.scale * self.reach
        noise = DTYPES[self.case.dtype].eta * norm_v + score * self.Bv
        # P = exp(S - LSE) in the place of a division by l: the rounding of LSE is common to the row.
        noise += FP32_UNIT * self.lse.abs().nan_to_num(posinf=0.0) * self.O[EXACT].norm(dim=-1)
        O = expected(self.models, self.O, self.squares, self.weighted, count, noise, (B, H), self.rows, late=self.late)
        limit = LSE_ROUNDING * self.lse.abs().clamp(min=1.0) + score
        tolerance = {
            m.accuracy: torch.where(count == 0, 0.0, limit + self.score_error[m]).view(B, H, -1)
            for m in self.models
            if m.accuracy
        }
        return {"O": O, "LSE": Expected(self.lse.view(B, H, -1), tolerance, O.empty, None, {}, O.rows)}

    def _gradient_outputs(self, g: KeyGradient) -> dict[str, Expected]:
        case, s, eta = self.case, self.scale, DTYPES[self.case.dtype].eta
        assert self.problem.dO is not None
        for sums in (self.dQ, g.dK):
            sums.update({m: m.out(x.mul_(case.softmax_scale)) for m, x in sums.items()})
        g.dV.update({m: m.out(x) for m, x in g.dV.items()})
        squares_dQ, squares_dK = (x.mul_(s * s) for x in (self.squares_dQ, g.squares_dK))
        norm_q, norm_k, norm_dO = (norm_of(x.flatten(1)) for x in (self.problem.q, self.problem.k, self.problem.dO))
        keys = norm_of(self.problem.k)
        row_score = FP32_SCORE_ERROR * s * self.reach
        key_score = FP32_SCORE_ERROR * s * g.reach * (keys if self.keys is None else keys.gather(1, self.keys))
        dP = 2.0 * longest_of(self.problem.dO.flatten(1, 2)) * longest_of(self.problem.v)  # at least |dP| + |delta|
        flush = s * (eta + EXP_FLUSH * dP)
        noise_dQ = (flush * norm_k)[:, None, None] + row_score * length_of(squares_dQ)
        noise_dK = (flush * norm_q)[:, None] + key_score * length_of(squares_dK)
        noise_dV = eta * norm_dO[:, None] + key_score * length_of(g.squares_dV)
        by_row = self._attended(case.mask, self.rows, self.row_shape)
        by_key = self.problem.group * self._attending(case.mask, self.keys, self.key_shape)
        rows, heads = (case.batch, case.heads), (case.batch, case.kv_heads)
        weighted_dQ, weighted_dK = s * self.weighted_dQ.sqrt(), s * g.weighted_dK.sqrt()
        weighted_dV, delta = g.weighted_dV.sqrt(), s * self.delta_error
        of_rows, of_keys = most(self.problem.row_copies), most(self.problem.key_copies)
        slope_dQ, slope_dK = s * self.flat_dQ.sqrt(), s * g.flat_dK.sqrt()
        of = partial(expected, self.models)
        return {
            "dQ": of(
                self.dQ, squares_dQ, weighted_dQ, by_row, noise_dQ, rows, self.rows, delta, slope_dQ, copies=of_keys
            ),
            "dK": of(g.dK, squares_dK, weighted_dK, by_key, noise_dK, heads, self.keys, slope=slope_dK, copies=of_rows),
            "dV": of(g.dV, g.squares_dV, weighted_dV, by_key, noise_dV, heads, self.keys, copies=of_rows),
        }

    def _attended(self, mask: Mask, rows: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
        """How many keys each query sees, in the results' shape [kv, group, rows]."""
        index = torch.arange(mask.Nq, device=self.device) if rows is None else rows.view(shape)
        low = torch.zeros_like(index) if mask.left is None else (index + mask.offset - mask.left).clamp(min=0)
        high = torch.full_like(index, mask.Nk)
        if mask.right is not None:
            high = torch.minimum(high, index + mask.offset + mask.right + 1)
        return (high - low).clamp(min=0).expand(shape)

    def _attending(self, mask: Mask, keys: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor:
        """How many queries see each key [kv, keys]: those with j - offset - right <= i <= j - offset + left."""
        index = torch.arange(mask.Nk, device=self.device) if keys is None else keys
        low = torch.zeros_like(index) if mask.right is None else (index - mask.offset - mask.right).clamp(min=0)
        high = torch.full_like(index, mask.Nq)
        if mask.left is not None:
            high = torch.minimum(high, index - mask.offset + mask.left + 1)
        return (high - low).clamp(min=0).expand(shape)
