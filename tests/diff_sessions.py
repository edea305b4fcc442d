"""Synthetic A/A sessions through the noise file's estimate into diffs."""

from __future__ import annotations

import math

import numpy as np

from fabench.diff.estimates import Rounds
from fabench.diff.evidence import weigh
from fabench.diff.noise import NoiseFile, RowNoise, SessionNoise, estimate
from fabench.diff.tau import Tau
from fabench.diff.thresholds import Thresholds
from noise_model import Design, Machine, Noise


def calibrated(rng: np.random.Generator, machine: Machine, sessions: int) -> Tau:
    """The variance that a noise file of that many A/A sessions yields for rows of 1 to 10 ms."""
    out = []
    for number in range(sessions):
        y = machine.rounds(rng, 10, machine.session(rng))
        means, variances = y.mean(axis=1), y.var(axis=1, ddof=1)
        rows = [
            RowNoise(row_id=str(i), regime="burst", mean_ln_ns=float(m), variance=float(v), rounds=10)
            for i, (m, v) in enumerate(zip(means, variances, strict=True))
        ]
        day = f"2026-01-{number + 1:02d}T00:00:00+00:00"
        out.append(SessionNoise(session_id=str(number), started=day, torch="2", suite_hash="s", rows=rows))
    return estimate("f", NoiseFile(model="X", sessions=out), 6, 3).classes["session", "burst", "1-10ms"]


def calibrated_diffs(
    noise: Noise, sessions: int, diffs: int, effect: float, seed: int = 9
) -> tuple[float, float, float]:
    """(diffs with a false slow row, changed rows found: of one in each; median degrees of freedom of tau)."""
    rng, limits, slow, found, nu = np.random.default_rng(seed), Thresholds(), 0, 0, []
    for _ in range(diffs):
        machine = Machine.draw(rng, 200, noise)
        tau = calibrated(rng, machine, sessions)
        old, new = (machine.rounds(rng, 10, machine.session(rng)) for _ in range(2))
        new[0] += math.log1p(effect)
        design = Design(interleaved=False, tau2=tau.tau2, tau_nu=tau.nu)
        evidence = weigh(Rounds.dense(old), Rounds.dense(new), design.context(limits), limits)
        slow += bool(evidence.slow[1:].any())
        found += bool(evidence.slow[0])
        nu.append(tau.nu)
    return slow / diffs, found / diffs, float(np.median(nu))
