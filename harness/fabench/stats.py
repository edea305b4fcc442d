"""Statistics of one row's samples: quantiles, and an interval for the median that assumes no distribution.

The inference over rounds that a comparison of two files needs is in `fabench.diff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
"""Two-sided confidence of the median's interval wherever fabench prints one."""
FEWEST = 6
"""Fewer samples have no interval of that confidence: their range stands in its place."""

LEVELS: dict[str, float] = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
"""Name -> level of the quantiles a row stores."""


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the median from order statistics, in the unit of `samples`.

    With X_(1) <= ... <= X_(n), the number of samples below the true median is Binomial(n, 1/2), so
    [X_(k), X_(n+1-k)] covers it with probability 1 - 2 P(Bin(n, 1/2) <= k - 1), whatever the distribution
    (David & Nagaraja, Order Statistics, 3rd ed., §7.1). The k returned is the largest that still covers `confidence`.
    Below `FEWEST` samples no pair of them reaches 95 %: the result is then (min, max), the widest there is.

    Raises ValueError if there are no samples, if one is not finite, or if confidence is not within (0, 1).
    """
    return _interval(_ordered(samples), confidence)


@lru_cache(maxsize=4096)
def lower_rank(n: int, confidence: float = CONFIDENCE) -> int:
    """The k (from 1) of `median_interval` for n samples; exact integers, so no tail is lost to rounding."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be within (0, 1), got {confidence}")
    allowed = (1.0 - confidence) / 2.0
    below, k, total = 0, 0, 1 << n
    while 2 * k < n:
        below += comb(n, k)
        if below / total > allowed:
            break
        k += 1
    return max(1, k)


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """min, p10, p25, median, p75, p90, max, ci_low and ci_high (95 % interval of the median), in the unit of `samples`.

    Quantiles between two samples are interpolated linearly (Hyndman & Fan 1996, definition 7). Raises ValueError as
    `median_interval` does.
    """
    ordered = _ordered(samples)
    values = np.quantile(ordered, list(LEVELS.values()))
    low, high = _interval(ordered, CONFIDENCE)
    return {**{name: float(value) for name, value in zip(LEVELS, values, strict=True)}, "ci_low": low, "ci_high": high}


def _interval(ordered: Floats, confidence: float) -> tuple[float, float]:
    k = lower_rank(len(ordered), confidence)
    return float(ordered[k - 1]), float(ordered[-k])


def _ordered(samples: Sequence[float]) -> Floats:
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if ordered.ndim != 1 or ordered.size == 0:
        raise ValueError(f"samples must be a list of at least one number, got shape {ordered.shape}")
    if not np.isfinite(ordered).all():
        raise ValueError("samples must be finite numbers, got NaN or infinity among them")
    return ordered
