"""Covering designs: few rows in which every combination of any two (or three) axes' values occurs.

A greedy one-row-at-a-time construction (Cohen, Dalal, Fredman and Patton 1997, "The AETG system", IEEE TSE 23(7)): each
row starts from a combination that is still missing and takes the values that add most. So the first rows cover most,
and any prefix of the design is a good one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Row = tuple[int, ...]
"""One value index an axis."""
Axes = tuple[int, ...]
Missing = dict[Axes, NDArray[np.bool_]]
"""Axes taken together -> which combinations of their values do not occur yet."""


def design(
    sizes: Sequence[int],
    strength: int,
    possible: Callable[[Row], bool],
    most: int,
    *,
    pair_possible: Callable[[int, int, int, int], bool] = lambda a, value_a, b, value_b: True,
    first: Sequence[Row] = (),
    seed: int = 0,
    candidates: int = 4,
    attempts: int = 4,
) -> list[Row]:
    """At most `most` rows over axes of `sizes` values; `strength` 2 is pairwise.

    Rows that are not `possible` never occur; a combination for which `attempts` searches find no possible row is given
    up. `pair_possible(a, i, b, j)` says early whether value i of axis a goes with value j of axis b at all. `first` are
    the rows to begin with.
    """
    draw = random.Random(seed)
    together = list(combinations(range(len(sizes)), strength))
    missing: Missing = {axes: np.ones([sizes[a] for a in axes], dtype=bool) for axes in together}
    allowed = _allowed(sizes, pair_possible)
    targets = [(axes, values) for axes in together for values in product(*(range(sizes[a]) for a in axes))]
    targets = [t for t in targets if all(allowed[a, b][i, j] for (a, i), (b, j) in _pairs(*t))]
    draw.shuffle(targets)
    rows: list[Row] = []
    for row in first:
        if possible(row) and len(rows) < most:
            rows.append(row)
            _cover(missing, row)
    for axes, values in targets:
        for _ in range(attempts):
            if len(rows) >= most or not missing[axes][values]:
                break
            start = dict(zip(axes, values, strict=True))
            grown = (_grow(sizes, dict(start), missing, allowed, draw) for _ in range(candidates))
            fitting = [row for row in grown if row is not None and possible(row)]
            if fitting:
                rows.append(max(fitting, key=lambda row: _gain(missing, row)))
                _cover(missing, rows[-1])
    return rows


def coverage(rows: Sequence[Row], sizes: Sequence[int], strength: int) -> float:
    """The fraction of all combinations that occur in `rows`, possible or not."""
    missing: Missing = {
        axes: np.ones([sizes[a] for a in axes], dtype=bool) for axes in combinations(range(len(sizes)), strength)
    }
    for row in rows:
        _cover(missing, row)
    left, total = sum(int(m.sum()) for m in missing.values()), sum(m.size for m in missing.values())
    return 1.0 - left / total if total else 1.0


def _allowed(
    sizes: Sequence[int], pair_possible: Callable[[int, int, int, int], bool]
) -> dict[tuple[int, int], NDArray[np.bool_]]:
    allowed = {}
    for a, b in combinations(range(len(sizes)), 2):
        table = np.array([[pair_possible(a, i, b, j) for j in range(sizes[b])] for i in range(sizes[a])], dtype=bool)
        allowed[a, b], allowed[b, a] = table, table.T
    return allowed


def _pairs(axes: Axes, values: Row) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(combinations(zip(axes, values, strict=True), 2))


def _grow(
    sizes: Sequence[int],
    chosen: dict[int, int],
    missing: Missing,
    allowed: dict[tuple[int, int], NDArray[np.bool_]],
    draw: random.Random,
) -> Row | None:
    """A row around the values already `chosen`: axis by axis, of the values that go with all chosen ones, the one that
    completes most missing combinations. None if an axis has no such value."""
    strength = len(chosen)
    order = [a for a in range(len(sizes)) if a not in chosen]
    draw.shuffle(order)
    for axis in order:
        gains = np.zeros(sizes[axis], dtype=int)
        for others in combinations(chosen, strength - 1):
            axes = tuple(sorted((*others, axis)))
            gains += missing[axes][tuple(slice(None) if a == axis else chosen[a] for a in axes)]
        fits = np.ones(sizes[axis], dtype=bool)
        for other, value in chosen.items():
            fits &= allowed[other, axis][value]
        if not fits.any():
            return None
        best = np.flatnonzero(fits & (gains == gains[fits].max()))
        chosen[axis] = int(best[draw.randrange(len(best))])
    return tuple(chosen[a] for a in range(len(sizes)))


def _gain(missing: Missing, row: Row) -> int:
    return sum(bool(left[tuple(row[a] for a in axes)]) for axes, left in missing.items())


def _cover(missing: Missing, row: Row) -> None:
    for axes, left in missing.items():
        left[tuple(row[a] for a in axes)] = False
