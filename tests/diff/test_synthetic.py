"""The whole rule on synthetic files with the noise of benchmarks: false verdicts, power, calibration of the tests.

Rates are far from their limits (docs/diff.md shows them); the seeds are fixed, so a failure is a change of the rule.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fabench.diff.evidence import weigh
from fabench.diff.noise import NoiseFile, RowNoise, SessionNoise
from fabench.diff.noise import estimate as estimate_noise
from fabench.diff.thresholds import Thresholds
from noise_model import Design, Machine, Noise, tally, upper_bound

SPIKES = Noise(spike_share=0.05)


@pytest.mark.parametrize("session", [0.0, 0.003, 0.005])
def test_unchanged_files_show_no_regression(session):
    """T1: 200 tables of 200 rows, interleaved or in two sessions of known noise."""
    design = Design(noise=Noise(session=session), interleaved=session == 0.0, tau2=session**2)
    found = tally(design, 200, seed=1)
    assert found.any_slow <= 0.05 * 200
    assert found.any_fast <= 0.05 * 200
    assert upper_bound(found.any_slow, 200) <= 0.08
    assert abs(found.bias) <= 0.003


def test_a_session_offset_that_interleaving_shares_does_no_harm():
    found = tally(Design(noise=Noise(session=0.02, common=0.02)), 60, seed=2)
    assert (found.any_slow, found.any_fast) == (0, 0)


@pytest.mark.parametrize("rounds", [5, 7, 10])
def test_unchanged_rows_are_called_same_and_few_are_left_open(rounds):
    found = tally(Design(rounds=rounds), 40, seed=3)
    assert found.same > {5: 0.75, 7: 0.83, 10: 0.90}[rounds]
    assert found.inconclusive < 0.22


@pytest.mark.parametrize(("effect", "power"), [(0.02, 0.55), (0.03, 0.90), (0.05, 0.98)])
@pytest.mark.parametrize("changed", [1, 10])
def test_a_slowdown_is_found_interleaved_through_spikes(effect, power, changed):
    """T2, interleaved, 10 rounds, 5 % of cells hit by a spike of 5 %."""
    found = tally(Design(noise=SPIKES, effect=effect, changed=changed), 300 if changed == 1 else 60, seed=4)
    assert found.power >= power
    assert found.wrong_sign == 0
    assert abs(found.bias) <= 0.003
    assert found.any_slow <= 0.05 * found.diffs


def test_a_slowdown_of_five_percent_is_found_across_sessions_of_known_noise():
    """T2, across sessions, tau 0.5 %."""
    noise = replace(SPIKES, session=0.005)
    design = Design(noise=noise, interleaved=False, tau2=0.005**2, effect=0.05, changed=1)
    found = tally(design, 150, seed=5)
    assert found.power >= 0.75
    assert found.wrong_sign == 0
    assert found.any_slow == 0


def test_without_calibration_the_wide_margin_holds_what_sessions_do():
    design = Design(noise=Noise(session=0.008), interleaved=False, margin=0.05)
    found = tally(design, 60, seed=6)
    assert (found.any_slow, found.any_fast) == (0, 0)
    found = tally(replace(design, effect=0.09, changed=1), 60, seed=7)
    assert found.power >= 0.9


@pytest.mark.parametrize("rounds", [5, 10])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_p_values_are_what_they_say_at_the_edge_of_the_margin(rounds, spread):
    """With every row slower by exactly the margin, p < x happens with probability x: the sharpest test of the SE."""
    design = Design(rounds=rounds, noise=Noise(between_spread=spread), effect=0.01, changed=200)
    rng, limits = np.random.default_rng(8), Thresholds()
    context = design.context(limits)
    p = np.concatenate([weigh(*design.pair(rng), context, limits).p_slow for _ in range(60)])
    assert (p < 0.05).mean() == pytest.approx(0.05, abs=0.008)
    assert (p < 0.01).mean() == pytest.approx(0.01, abs=0.004)
    assert (p < 0.001).mean() < 0.003


@pytest.mark.parametrize("common", [False, True])
def test_tau_measured_in_twelve_sessions_serves_as_well_as_tau_known(common):
    """From A/A sessions through the noise file to the verdicts, offsets of rows apart or all as one."""
    rng = np.random.default_rng(9)
    noise = Noise(common=0.005) if common else Noise(session=0.005)
    slow, found, trials = 0, 0, 20
    for _ in range(trials):
        machine = Machine.draw(rng, 200, noise)
        tau = calibrated(rng, machine, sessions=12)
        old, new = (machine.rounds(rng, 10, machine.session(rng)) for _ in range(2))
        new[0] += math.log1p(0.06)
        design = Design(interleaved=False, tau2=tau.tau2, tau_nu=tau.nu)
        evidence = weigh(*(dense(y) for y in (old, new)), design.context(Thresholds()), Thresholds())
        slow += bool(evidence.slow[1:].any())
        found += bool(evidence.slow[0])
    assert slow == 0
    # If all rows move as one, a session is one observation and 12 of them say little: see docs/diff.md.
    assert found / trials >= (0.25 if common else 0.9)


def dense(y):
    from fabench.diff.estimates import Rounds

    return Rounds.dense(y)


def calibrated(rng, machine, sessions):
    """The variance that a noise file of that many A/A sessions yields for rows of this machine."""
    out = []
    for number in range(sessions):
        y = machine.rounds(rng, 10, machine.session(rng))
        rows = [
            RowNoise(
                row_id=str(i), regime="burst", mean_ln_ns=float(a.mean()), variance=float(a.var(ddof=1)), rounds=10
            )
            for i, a in enumerate(y)
        ]
        day = f"2026-01-{number + 1:02d}T00:00:00+00:00"
        out.append(SessionNoise(session_id=str(number), started=day, torch="2", suite_hash="s", rows=rows))
    noise = estimate_noise("f", NoiseFile(model="X", sessions=out), 6, 3)
    return noise.classes["session", "burst", "1-10ms"]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, 7, 10])
@pytest.mark.parametrize("spikes", [0.0, 0.05])
def test_any_false_row_at_the_edge_of_the_margin_stays_at_q(rounds, spikes):
    """The worst case the correction promises for: every row of 200 at the margin, so every rejection is false."""
    design = Design(rounds=rounds, noise=Noise(spike_share=spikes), effect=0.01, changed=200)
    rng, limits = np.random.default_rng(10), Thresholds()
    context = design.context(limits)
    false = sum(bool(weigh(*design.pair(rng), context, limits).slow.any()) for _ in range(1000))
    assert upper_bound(false, 1000) <= 0.085


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.02, 0.03, 0.05])
def test_power_of_one_row_among_two_hundred_in_many_diffs(effect):
    found = tally(Design(noise=SPIKES, effect=effect, changed=1), 3000, seed=11)
    assert found.power >= {0.02: 0.55, 0.03: 0.90, 0.05: 0.98}[effect]
    assert found.wrong_sign == 0
