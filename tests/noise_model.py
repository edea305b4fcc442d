"""Synthetic result tables with the noise benchmarks have: between rounds, within a round, between sessions, and spikes.

One table is what a diff sees of two files: ln of each round's median, [rows, rounds], per side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from fabench.diff.estimates import Rounds
from fabench.diff.evidence import Context, weigh
from fabench.diff.thresholds import Thresholds

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """The hierarchy, as fractions of t."""

    between_median: float = 0.004
    """Median over rows of the sd between rounds, which is log-normal over rows."""
    between_spread: float = 0.5
    """sd of its log."""
    within: float = 0.007
    """Mean of the exponential excess of one sample."""
    samples: int = 61
    session: float = 0.0
    """sd of the offset each row has in a session."""
    common: float = 0.0
    """sd of an offset that all rows of a session share."""
    spike_share: float = 0.0
    """Share of (row, round) cells hit by a slow spike."""
    spike: float = 0.05
    """Mean of its exponential size."""


@dataclass(frozen=True)
class Machine:
    """Rows with their own noise level: sessions measured on it differ only by chance."""

    noise: Noise
    level: Floats
    """ln t of every row."""
    sd: Floats

    @classmethod
    def draw(cls, rng: np.random.Generator, rows: int, noise: Noise) -> Machine:
        sd = noise.between_median * np.exp(noise.between_spread * rng.standard_normal(rows))
        return cls(noise, np.log(rng.uniform(1e5, 1e7, rows)), sd)

    def session(self, rng: np.random.Generator) -> Floats:
        """Offsets of one session, [rows]."""
        return self.noise.session * rng.standard_normal(len(self.level)) + self.noise.common * rng.standard_normal()

    def rounds(self, rng: np.random.Generator, rounds: int, offset: Floats | float = 0.0) -> Floats:
        """ln of each round's median, [rows, rounds]."""
        shape = (len(self.level), rounds)
        half = (self.noise.samples + 1) / 2
        # The median of n exponentials is the exponential's quantile at a Beta((n+1)/2, (n+1)/2) level.
        within = -self.noise.within * np.log1p(-rng.beta(half, half, shape))
        y = self.level[:, None] + self.sd[:, None] * rng.standard_normal(shape) + within
        y += np.asarray(offset)[..., None] if np.ndim(offset) else offset
        if self.noise.spike_share:
            hit = rng.random(shape) < self.noise.spike_share
            y += np.log1p(hit * rng.exponential(self.noise.spike, shape))
        return y

    def samples(self, rng: np.random.Generator, rounds: int, offset: Floats | float = 0.0) -> Floats:
        """ln of every sample, [rows, rounds, samples]: what rules that pool samples see."""
        shape = (len(self.level), rounds)
        center = self.level[:, None] + self.sd[:, None] * rng.standard_normal(shape)
        center += np.asarray(offset)[..., None] if np.ndim(offset) else offset
        return center[..., None] + np.log1p(rng.exponential(self.noise.within, (*shape, self.noise.samples)))


@dataclass(frozen=True)
class Design:
    """How two files were made and are compared."""

    rounds: int = 10
    rows: int = 200
    noise: Noise = Noise()
    interleaved: bool = True
    margin: float = 0.01
    tau2: float = 0.0
    tau_nu: float = math.inf
    effect: float = 0.0
    """Slowdown of the first `changed` rows, a fraction of t."""
    changed: int = 0

    def context(self, limits: Thresholds) -> Context:
        def full(value: float) -> Floats:
            return np.full(self.rows, float(value))

        equivalence = self.margin if self.interleaved else max(self.margin, limits.equivalence_cross_session)
        return Context(
            margin=full(self.margin),
            equivalence=full(equivalence),
            shift=full(0.0),
            tau2=full(self.tau2),
            tau_nu=full(self.tau_nu),
            floor=full(1e-14),
            tested=np.ones(self.rows, dtype=bool),
        )

    def pair(self, rng: np.random.Generator) -> tuple[Rounds, Rounds]:
        """Old and new of one fresh machine."""
        machine = Machine.draw(rng, self.rows, self.noise)
        offset = machine.session(rng)
        old = machine.rounds(rng, self.rounds, offset)
        new = machine.rounds(rng, self.rounds, offset if self.interleaved else machine.session(rng))
        new[: self.changed] += math.log1p(self.effect)
        return Rounds.dense(old), Rounds.dense(new)


@dataclass
class Tally:
    """What a number of diffs of one design found."""

    diffs: int = 0
    any_slow: int = 0
    """Diffs in which a row that did not change was called slower."""
    any_fast: int = 0
    found: int = 0
    """Changed rows called slower, of `changed`."""
    changed: int = 0
    wrong_sign: int = 0
    """Changed rows called faster."""
    bias: float = 0.0
    """Mean of d less the truth, over the changed rows if there are any, else over all."""
    same: float = 0.0
    inconclusive: float = 0.0
    """Shares of all rows."""

    @property
    def power(self) -> float:
        return self.found / self.changed


def tally(design: Design, diffs: int, seed: int) -> Tally:
    """Run that many diffs."""
    rng, limits, out = np.random.default_rng(seed), Thresholds(), Tally(diffs)
    context, k = design.context(limits), design.changed
    for _ in range(diffs):
        evidence = weigh(*design.pair(rng), context, limits)
        out.any_slow += bool(evidence.slow[k:].any())
        out.any_fast += bool(evidence.fast[k:].any())
        out.found += int(evidence.slow[:k].sum())
        out.changed += k
        out.wrong_sign += int(evidence.fast[:k].sum())
        d = evidence.d[:k] - math.log1p(design.effect) if k else evidence.d
        out.bias += float(d.mean()) / diffs
        out.same += float(evidence.same.mean()) / diffs
        out.inconclusive += float((~(evidence.slow | evidence.fast | evidence.same)).mean()) / diffs
    return out


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound of a probability."""
    return 1.0 if events == trials else float(beta.ppf(confidence, events + 1, trials - events))
