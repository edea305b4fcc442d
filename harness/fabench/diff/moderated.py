"""Rows lend each other knowledge of the variance: the moderated t of Smyth (2004), as microarray analyses use it.

G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray
experiments", Statistical Applications in Genetics and Molecular Biology 3(1), 2004; equations by section below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """What the rows together say about one row's variance: scaled inverse chi-square of `nu` degrees of freedom."""

    nu: float
    """0: nothing, infinite: all rows share one variance."""
    s2: float
    rows: int
    """Rows it was estimated from."""


NO_PRIOR = Prior(0.0, 0.0, 0)


def fit_prior(s2: Floats, nu: Floats, min_rows: int) -> Prior:
    """The prior by moments of ln s2 (§6.2); `NO_PRIOR` below `min_rows` usable rows.

    With e_i = ln s2_i - digamma(nu_i/2) + ln(nu_i/2): trigamma(nu0/2) = mean of (e_i - mean e)^2 m/(m-1) -
    trigamma(nu_i/2), infinite nu0 where that is not positive, and s2_0 = exp(mean e + digamma(nu0/2) - ln(nu0/2)).
    `s2` must be positive where `nu` > 0; rows with nu = 0 or s2 NaN are left out.
    """
    from scipy.special import digamma, polygamma

    usable = (nu > 0) & np.isfinite(s2) & (s2 > 0)
    rows = int(usable.sum())
    if rows < min_rows:
        return NO_PRIOR
    half = nu[usable] / 2.0
    e = np.log(s2[usable]) - digamma(half) + np.log(half)
    mean = float(e.mean())
    excess = float(((e - mean) ** 2).sum() / (rows - 1) - polygamma(1, half).mean())
    if excess <= 0.0:
        return Prior(math.inf, math.exp(mean), rows)
    half0 = trigamma_inverse(excess)
    return Prior(2.0 * half0, math.exp(mean + float(digamma(half0)) - math.log(half0)), rows)


def trigamma_inverse(x: float) -> float:
    """y with trigamma(y) = x, x > 0, by Newton's method on 1/trigamma, which is convex (appendix of Smyth 2004)."""
    from scipy.special import polygamma

    if x > 1e7:
        return float(x**-0.5)
    if x < 1e-6:
        return 1.0 / x
    y = 0.5 + 1.0 / x
    for _ in range(50):
        trigamma = float(polygamma(1, y))
        step = trigamma * (1.0 - trigamma / x) / float(polygamma(2, y))
        y += step
        if -step / y < 1e-8:
            break
    return y


def moderate(s2: Floats, nu: Floats, prior: Prior) -> tuple[Floats, Floats]:
    """Shrunken variances (nu0 s2_0 + nu s2) / (nu0 + nu) and their degrees of freedom nu0 + nu (§3).

    No row claims more degrees of freedom than all rows have together: a prior estimated from few rows cannot make a
    t into a normal.
    """
    if prior.nu == 0.0:
        return s2, nu
    own = np.where(nu > 0, s2, 0.0)
    shrunken = (
        np.full(len(s2), prior.s2) if math.isinf(prior.nu) else (prior.nu * prior.s2 + nu * own) / (prior.nu + nu)
    )
    return shrunken, np.minimum(prior.nu + nu, nu.sum())


def satterthwaite(parts: list[tuple[Floats, Floats]]) -> Floats:
    """Degrees of freedom of a sum of independent variances (value, nu) (Satterthwaite 1946): (sum v)^2 / sum v^2/nu."""
    total = sum((value for value, _ in parts), np.zeros(1))
    spread = sum((value**2 / np.maximum(nu, 1e-12) for value, nu in parts), np.zeros(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, np.asarray(total) ** 2 / spread, np.inf)
