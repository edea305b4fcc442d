"""The geometric mean of new/old by backend and direction, with an interval over rounds. It informs and never gates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabench.diff.compare import Comparison, RowDiff
from fabench.diff.estimates import Floats, Ints
from fabench.diff.side import Side
from fabench.diff.winsor import factors, winsorise

SEED = 20_240_711
"""The bootstrap's: equal files give equal intervals."""


@dataclass(frozen=True)
class Geomean:
    """exp(mean of d) over rows ok in both files and measured alike."""

    backend: str
    direction: str
    ratio: float
    low: float | None
    high: float | None
    """95 % interval over rounds; None with one round. Session-to-session noise is not in it."""
    common: int
    """Rows it is taken over."""
    old: int
    new: int
    """Rows ok in each file: where they differ from `common`, the mean leaves rows out."""


def geomeans(found: Comparison) -> list[Geomean]:
    """One for each backend and direction with a row timed in both files."""
    groups: dict[tuple[str, str], list[RowDiff]] = {}
    for row in found.rows:
        if row.at is not None and row.verdict != "NOT_COMPARABLE" and math.isfinite(found.evidence.d[row.at]):
            groups.setdefault((row.pair.backend, row.pair.case.direction), []).append(row)
    counts = [_ok(found, side) for side in (found.old, found.new)]
    out = []
    for (backend, direction), rows in sorted(groups.items()):
        d = float(np.mean([found.evidence.d[row.at] for row in rows]))
        spread = _bootstrap(found, rows, found.options.limits.bootstrap_draws)
        low, high = (None, None) if spread is None else (math.exp(d + spread[0]), math.exp(d + spread[1]))
        old, new = (count.get((backend, direction), 0) for count in counts)
        out.append(Geomean(backend, direction, math.exp(d), low, high, len(rows), old, new))
    return out


def _ok(found: Comparison, side: Side) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for row in found.rows:
        place = row.pair.old if side is found.old else row.pair.new
        if place is not None and side.status[place] == "ok":
            key = row.pair.backend, row.pair.case.direction
            counts[key] = counts.get(key, 0) + 1
    return counts


def _bootstrap(found: Comparison, rows: list[RowDiff], draws: int) -> tuple[float, float] | None:
    """95 % interval of the resampled mean shift around the one observed; None without two rounds a side.

    Whole rounds are drawn, the same for all rows (a cluster bootstrap: Davison & Hinkley 1997, §3.8), because what
    makes a round slow makes all its rows slow; drawing rows would take them for independent. Rounds are winsorised
    first, as in the variance, and what that takes away is put back. Percentiles of few resampled rounds are too narrow
    by sqrt((R - 1)/R) and by a normal's quantile in place of t's: they are taken further out (Hesterberg 2015, §4.4).
    """
    rng = np.random.default_rng(SEED)
    means, rounds = [], []
    for side, places in (
        (found.old, [row.pair.places[0] for row in rows]),
        (found.new, [row.pair.places[1] for row in rows]),
    ):
        mean = _resampled(side, np.array(places, dtype=np.int64), draws, rng)
        if mean is None:
            return None
        count = int(side.times.count[places].max())
        means.append((mean - mean[0]) / math.sqrt(factors(count)[0]))
        rounds.append(count)
    tail = _expanded_tail(min(rounds), sum(rounds) - 2)
    low, high = np.quantile((means[1] - means[0])[1:], [tail, 1.0 - tail])
    return float(low), float(high)


def _expanded_tail(rounds: int, nu: int) -> float:
    """The percentile that stands for 2.5 %: Phi(-sqrt(R/(R - 1)) t)."""
    from scipy.special import ndtr, stdtrit

    return float(ndtr(-math.sqrt(rounds / (rounds - 1)) * stdtrit(nu, 0.975)))


def _resampled(side: Side, rows: Ints, draws: int, rng: np.random.Generator) -> Floats | None:
    """Mean over rows of their mean y over rounds: first as observed, then for `draws` resamples of the rounds."""
    y, present = _by_round(side, rows)
    rounds = y.shape[1]
    if rounds < 2:
        return None
    picks = rng.multinomial(rounds, np.full(rounds, 1.0 / rounds), size=draws)
    weights = np.vstack([np.ones(rounds), picks])
    whole = present.all(axis=1)
    total = weights @ np.where(present[whole], y[whole], 0.0).sum(axis=0) / rounds
    for part in np.array_split(np.flatnonzero(~whole), max(1, int((~whole).sum()) // 500)):
        weight = weights @ present[part].T
        sums = weights @ np.where(present[part], y[part], 0.0).T
        own = y[part].sum(axis=1, where=present[part]) / present[part].sum(axis=1)
        # A draw may miss all the rounds a row has: the row then keeps its own mean.
        total += np.where(weight > 0, sums / np.maximum(weight, 1e-300), own).sum(axis=1)
    return np.asarray(total / len(rows), dtype=np.float64)


def _by_round(side: Side, rows: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """Winsorised y of some rows, [rows, rounds of the file], and where there is one."""
    numbers, times = side.numbers[rows], side.times.take(rows)
    known = np.unique(numbers[numbers >= 0])
    y = np.zeros((len(rows), len(known)))
    present = np.zeros(y.shape, dtype=bool)
    for count in np.unique(times.count):
        at = np.flatnonzero(times.count == count)
        column = np.searchsorted(known, numbers[at, :count])
        y[at[:, None], column] = winsorise(times.y[at, :count])
        present[at[:, None], column] = True
    return y, present
