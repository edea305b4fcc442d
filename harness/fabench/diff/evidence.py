"""What the rounds say about each row: shift, interval, a margin test each way, guard, equivalence, rounds needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fabench.diff.estimates import Rounds, estimate, same_shape
from fabench.diff.moderated import Prior, fit_prior, moderate, satterthwaite
from fabench.diff.thresholds import Thresholds

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Context:
    """What is known of every row beside its rounds, all [rows]."""

    margin: Floats
    """Largest change that is no regression, a fraction of 1."""
    equivalence: Floats
    """Largest change that is SAME, a fraction of 1: see docs/diff.md, 'SAME across sessions'."""
    shift: Floats
    """|ln| of the canary's move for the row's bound class: widens the threshold."""
    tau2: Floats
    """Session-to-session variance of ln t, 0 where interleaved or unknown."""
    tau_nu: Floats
    """Its degrees of freedom; not read where tau2 is 0."""
    floor: Floats
    """Least variance of a round: the timer's quantum, see `timer_floor`."""
    tested: Bools
    """Rows whose times may be judged; the others get numbers and no verdict."""


@dataclass(frozen=True)
class Evidence:
    """By row, in ln t (new minus old) unless said otherwise."""

    d: Floats
    low: Floats
    high: Floats
    """95 % interval of d."""
    equivalence_low: Floats
    equivalence_high: Floats
    """90 % interval of d, the one SAME is decided by."""
    s2: Floats
    s2_nu: Floats
    """Variance of the row's own rounds."""
    variance: Floats
    """Moderated and not below the timer's floor."""
    scale: Floats
    """Var(d) = variance x scale + 2 tau2."""
    se: Floats
    nu: Floats
    """Satterthwaite's where tau2 > 0."""
    threshold: Floats
    p_slow: Floats
    p_fast: Floats
    adjusted_slow: Floats
    adjusted_fast: Floats
    """Benjamini-Hochberg adjusted over the tested rows."""
    guard_slow: Floats
    guard_fast: Floats
    """One-sided Mann-Whitney p."""
    slow: Bools
    fast: Bools
    same: Bools
    prior: Prior
    tests: int
    """Rows that took part in the correction."""


def timer_floor(quantum_ns: Floats, calls: Floats, median_ns: Floats) -> Floats:
    """Variance of ln t of a clock that counts in steps: (quantum / span)^2 / 12, span = calls x t.

    Identical samples then have the uncertainty of their clock, not none (the lesson of golang/go #19634).
    """
    return (quantum_ns / (calls * median_ns)) ** 2 / 12.0


def weigh(old: Rounds, new: Rounds, context: Context, limits: Thresholds) -> Evidence:
    """The evidence of every row. A row of one round on both sides has an estimate and no interval: NaN."""
    raw = estimate(old, new)
    floored = np.maximum(raw.s2, context.floor)
    prior = fit_prior(floored, raw.nu, limits.prior_rows)
    moderated, rounds_nu = moderate(floored, raw.nu, prior)
    variance = np.where(raw.nu > 0, np.maximum(moderated, context.floor), math.nan)
    within, between = variance * raw.scale, 2.0 * context.tau2
    se = np.sqrt(within + between)
    nu = np.where(between > 0, satterthwaite([(within, rounds_nu), (between, context.tau_nu)]), rounds_nu)
    threshold = np.log1p(context.margin) + context.shift

    p_slow, p_fast = upper_tail((raw.d - threshold) / se, nu), upper_tail((-raw.d - threshold) / se, nu)
    tested = context.tested & np.isfinite(se)
    adjusted_slow, adjusted_fast = false_discovery(p_slow, tested), false_discovery(p_fast, tested)
    guard_slow, guard_fast = mann_whitney(old, new)
    reach, reach_same = (
        quantile(1.0 - (1.0 - c) / 2.0, nu) * se for c in (limits.confidence, limits.equivalence_confidence)
    )
    same = np.log1p(context.equivalence)
    return Evidence(
        d=raw.d,
        low=raw.d - reach,
        high=raw.d + reach,
        equivalence_low=raw.d - reach_same,
        equivalence_high=raw.d + reach_same,
        s2=raw.s2,
        s2_nu=raw.nu,
        variance=variance,
        scale=raw.scale,
        se=se,
        nu=nu,
        threshold=threshold,
        p_slow=p_slow,
        p_fast=p_fast,
        adjusted_slow=adjusted_slow,
        adjusted_fast=adjusted_fast,
        guard_slow=guard_slow,
        guard_fast=guard_fast,
        slow=tested & (adjusted_slow <= limits.q) & (guard_slow <= limits.guard_p),
        fast=tested & (adjusted_fast <= limits.q) & (guard_fast <= limits.guard_p),
        same=tested & (raw.d - reach_same > -same) & (raw.d + reach_same < same),
        prior=prior,
        tests=int(tested.sum()),
    )


def upper_tail(t: Floats, nu: Floats) -> Floats:
    """P(T_nu > t); the normal's where nu is infinite."""
    from scipy.special import stdtr

    return np.asarray(stdtr(np.maximum(nu, 1e-3), -t), dtype=np.float64)


def quantile(p: float, nu: Floats) -> Floats:
    """The p quantile of T_nu."""
    from scipy.special import ndtri, stdtrit

    finite = np.where(np.isfinite(nu) & (nu > 0), nu, 1.0)
    return np.where(nu > 0, np.where(np.isfinite(nu), stdtrit(finite, p), ndtri(p)), math.nan)


def false_discovery(p: Floats, tested: Bools) -> Floats:
    """Benjamini-Hochberg adjusted p of the tested rows, 1 elsewhere."""
    from scipy.stats import false_discovery_control

    adjusted = np.ones(len(p))
    if tested.any():
        adjusted[tested] = false_discovery_control(p[tested])
    return adjusted


def mann_whitney(old: Rounds, new: Rounds) -> tuple[Floats, Floats]:
    """One-sided p of 'new is slower' and 'new is faster': exact, or with the tie-corrected normal where values tie.

    (Mann & Whitney 1947.) 1 where nothing can be said: a side with no rounds, or all values equal.
    """
    slower, faster = np.ones(len(old.count)), np.ones(len(old.count))
    for index, y_old, y_new in same_shape(old, new):
        ties = (np.diff(np.sort(np.concatenate([y_old, y_new], axis=1), axis=1), axis=1) == 0.0).any(axis=1)
        for tied in (False, True):
            rows = np.flatnonzero(ties == tied)
            if len(rows):
                slower[index[rows]] = _one_sided(y_new[rows], y_old[rows], tied)
                faster[index[rows]] = _one_sided(y_old[rows], y_new[rows], tied)
    return slower, faster


def _one_sided(greater: Floats, less: Floats, tied: bool) -> Floats:
    from scipy.stats import mannwhitneyu

    method: Literal["asymptotic", "exact"] = "asymptotic" if tied else "exact"
    with np.errstate(divide="ignore", invalid="ignore"):
        p = mannwhitneyu(greater, less, alternative="greater", method=method, axis=1).pvalue
    return np.nan_to_num(np.asarray(p, dtype=np.float64), nan=1.0)


def least_guard_p(rounds_old: int, rounds_new: int) -> float:
    """The smallest p the guard can reach: 1 / C(R_old + R_new, R_old). Above 0.025 nothing can be called REGRESSED."""
    return 1.0 / math.comb(rounds_old + rounds_new, rounds_old)


def rounds_needed(evidence: Evidence, context: Context, limits: Thresholds) -> Floats:
    """Rounds a side that would find a slowdown of `limits.effect`, by row; NaN: more rounds cannot decide.

    R = ceil(h s2 (t_a + t_power)^2 / ((ln(1 + effect) - threshold)^2 - 2 tau2 (t_a + t_power)^2)), the usual sample
    size of a two-sample t test, with h = R x `shift_scale` and t_a at q / rows tested: the level one row that moves
    alone must reach under the false discovery rate.
    """
    nu = evidence.nu
    alpha = limits.q / max(1, evidence.tests)
    reach = (quantile(1.0 - alpha, nu) + quantile(limits.power, nu)) ** 2
    room = np.log1p(limits.effect) - evidence.threshold
    denominator = np.where(room > 0, room**2, 0.0) - 2.0 * context.tau2 * reach
    two_sided = 2.0 * math.pi / 3.0 * 1.03
    with np.errstate(divide="ignore", invalid="ignore"):
        rounds = np.ceil(two_sided * evidence.variance * reach / denominator)
    return np.where(denominator > 0, np.maximum(rounds, limits.min_rounds), math.nan)
