"""The reference itself: drives the passes over heads, rows and keys and turns their sums into `Expected`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch

from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.inputs import Tensors
from fabench.names import Accuracy
from fabench.reference.backward import Backward, KeyGradient
from fabench.reference.forward import Family, Forward, families
from fabench.reference.positions import Positions, hides_all
from fabench.reference.problem import Problem, folded, take
from fabench.reference.result import Expected, Reference
from fabench.reference.rounding import EXACT, Model, model
from fabench.reference.sampling import SAMPLE, sampled_rows
from fabench.reference.scores import Tile

FP32_SCORE_ERROR = 8 * 2.0**-24
"""gS: error of one fp32 score, relative to |q||k|."""
LSE_ROUNDING = 2.0**-20

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
        self.lse, self.A, self.Bv, self.reach = (self._zeros(*rows) for _ in range(4))
        self.score_error = {m: self._zeros(*rows) for m in self.models}
        gradients = None
        if case.has_backward:
            self.dQ = {m: self._zeros(*rows, case.d) for m in self.all_models}
            self.squares_dQ = self._zeros(*rows)
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
        for name in ("A", "Bv", "reach"):
            store(getattr(self, name), getattr(forward, name))
        for family in self.groups:
            for m in family:
                if m is not EXACT:
                    store(self.score_error[m], forward.score_error[family])

    def _rows_backward(
        self, forward: Forward, heads: slice, block: Positions, out: slice, gradients: KeyGradient | None
    ) -> None:
        """DQ of a block of rows; dK and dV too where every row and key is wanted."""
        assert self.problem.dO is not None
        backward = Backward(forward, take(self.problem.dO, heads, block))
        for tile, k, v in forward.tiles():
            by_row, by_key = backward.tile(tile, k, v)
            for m, dQ in by_row.dQ.items():
                part = self.dQ[m][heads, :, out]
                part += dQ.view(part.shape)
            part = self.squares_dQ[heads, :, out]
            part += by_row.squares.view(part.shape)
            if gradients is not None:
                gradients.add(heads, tile.keys.slice, by_key)

    def _keys_backward(self, heads: slice, gradients: KeyGradient) -> None:
        """DK and dV of sampled keys: every block of rows again, for its LSE and delta, against those keys alone."""
        assert self.problem.dO is not None
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
            backward = Backward(forward, take(self.problem.dO, heads, block))
            _, by_key = backward.tile(Tile(self.case, forward.q, k, rows, keys), k, v)
            gradients.add(heads, slice(0, k.shape[1]), by_key)

    def _forward_outputs(self) -> dict[str, Expected]:
        B, H = self.case.batch, self.case.heads
        empty = self.lse == -torch.inf
        norm_v = self.problem.v.double().flatten(1).norm(dim=1)[:, None, None]
        score = FP32_SCORE_ERROR * self.scale * self.reach
        O = self._expected(self.O, self.A, norm_v, score * self.Bv, empty, (B, H), self.rows)
        limit = LSE_ROUNDING * self.lse.abs().clamp(min=1.0) + score
        tolerance = {
            m.accuracy: torch.where(empty, 0.0, limit + self.score_error[m]).view(B, H, -1)
            for m in self.models
            if m.accuracy
        }
        lse = Expected(self.lse.view(B, H, -1), tolerance, empty.view(B, H, -1), {}, O.rows)
        return {"O": O, "LSE": lse}

    def _gradient_outputs(self, g: KeyGradient) -> dict[str, Expected]:
        case, signed = self.case, self.case.softmax_scale
        assert self.problem.dO is not None

        def norm(x: torch.Tensor) -> torch.Tensor:
            norms: torch.Tensor = torch.linalg.vector_norm(x.double().flatten(1), dim=1)
            return norms

        for sums in (self.dQ, g.dK):
            for m, x in sums.items():
                sums[m] = m.out(x.mul_(signed))
        g.dV.update({m: m.out(x) for m, x in g.dV.items()})
        rows, keys = (case.batch, case.heads), (case.batch, case.kv_heads)
        A_dQ, A_dK, A_dV = self.scale * self.squares_dQ.sqrt(), self.scale * g.squares_dK.sqrt(), g.squares_dV.sqrt()
        row_score = FP32_SCORE_ERROR * self.scale * self.reach
        norms = self._key_norms()
        key_score = FP32_SCORE_ERROR * self.scale * g.reach * norms
        norm_k = self.scale * norm(self.problem.k)[:, None, None]
        norm_q, norm_dO = self.scale * norm(self.problem.q)[:, None], norm(self.problem.dO)[:, None]
        unattended = self._unattended_keys()
        empty = self.lse == -torch.inf
        return {
            "dQ": self._expected(self.dQ, A_dQ, norm_k, row_score * A_dQ, empty, rows, self.rows),
            "dK": self._expected(g.dK, A_dK, norm_q, key_score * A_dK, unattended, keys, self.keys),
            "dV": self._expected(g.dV, A_dV, norm_dO, key_score * A_dV, unattended, keys, self.keys),
        }

    def _key_norms(self) -> torch.Tensor:
        norms: torch.Tensor = torch.linalg.vector_norm(self.problem.k.double(), dim=-1)
        return norms if self.keys is None else norms.gather(1, self.keys)

    def _unattended_keys(self) -> torch.Tensor:
        """Keys no query attends to: key j is seen by queries i with j - offset - right <= i <= j - offset + left."""
        mask = self.case.mask
        index = torch.arange(mask.Nk, device=self.device).expand(self.problem.k.shape[0], -1)
        index = index if self.keys is None else self.keys
        first = torch.zeros_like(index) if mask.right is None else (index - mask.offset - mask.right).clamp(min=0)
        last = torch.full_like(index, mask.Nq - 1)
        if mask.left is not None:
            last = torch.minimum(last, index - mask.offset + mask.left)
        unattended: torch.Tensor = first > last
        return unattended

    def _expected(
        self,
        values: dict[Model, torch.Tensor],
        A: torch.Tensor,
        X: torch.Tensor,
        score: torch.Tensor,
        empty: torch.Tensor,
        heads: tuple[int, int],
        rows: torch.Tensor | None,
    ) -> Expected:
        """N_r = |T^m - T*| + u/2 |T*| + u/4 A + eta |X|_F + the score error, a row; exactly 0 for contract zeros."""
        exact = values[EXACT]
        length = exact.norm(dim=-1)
        eta = DTYPES[self.case.dtype].eta
        tolerance: dict[Accuracy, torch.Tensor] = {}
        errors: dict[Accuracy, float] = {}
        for m in self.models:
            difference = values[m] - exact
            N = difference.norm(dim=-1) + m.unit / 2 * length + m.unit / 4 * A + eta * X + score
            assert m.accuracy is not None
            tolerance[m.accuracy] = torch.where(empty, 0.0, N).view(*heads, -1)
            errors[m.accuracy] = float(difference.abs().max()) if difference.numel() else 0.0
        return Expected(
            exact.view(*heads, -1, exact.shape[-1]),
            tolerance,
            empty.view(*heads, -1),
            errors,
            None if rows is None else rows.view(*heads, -1),
        )
