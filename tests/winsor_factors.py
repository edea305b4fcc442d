"""Prints `fabench.diff.winsor.FACTORS`, simulated anew: `python tests/winsor_factors.py` (half a minute)."""

from __future__ import annotations

import numpy as np

from fabench.diff.moderated import trigamma_inverse
from fabench.diff.winsor import winsorise


def simulate(rounds: int, draws: int, seed: int = 20240501) -> tuple[float, float]:
    """(mean of the winsorised variance of unit-normal rounds, degrees of freedom that match the variance of its ln)."""
    rng, block, sums = np.random.default_rng(seed), 100_000, np.zeros(3)
    for _ in range(draws // block):
        s2 = winsorise(rng.standard_normal((block, rounds))).var(axis=1, ddof=1)
        z = np.log(s2)
        sums += s2.sum(), z.sum(), (z * z).sum()
    mean, mean_z, mean_zz = sums / (draws // block * block)
    return float(mean), 2.0 * trigamma_inverse(float(mean_zz - mean_z**2))


if __name__ == "__main__":
    for rounds in (*range(2, 21), 30, 40, 60, 100):
        bias, nu = simulate(rounds, 1_000_000)
        print(f"    {rounds}: ({bias:.3f}, {nu:.2f}),")
