"""The whole rule on synthetic files with the noise of benchmarks: false verdicts, power, calibration of the tests.

Rates are far from their limits (docs/diff.md shows them); the seeds are fixed, so a failure is a change of the rule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diff_sessions import calibrated_diffs
from fabench.diff.evidence import weigh
from fabench.diff.thresholds import Thresholds
from noise_model import Design, Noise, tally, upper_bound

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


@pytest.mark.parametrize("changed", [1, 10])
def test_a_slowdown_of_five_percent_is_found_across_sessions_of_known_noise(changed):
    """T2, across sessions, tau 0.5 %."""
    noise = replace(SPIKES, session=0.005)
    design = Design(noise=noise, interleaved=False, tau2=0.005**2, effect=0.05, changed=changed)
    found = tally(design, 150 if changed == 1 else 40, seed=5)
    assert found.power >= 0.75
    assert found.wrong_sign == 0
    assert found.any_slow <= 0.05 * found.diffs  # the rate of false discoveries is bounded, among true ones too


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
    noise = Noise(common=0.005) if common else Noise(session=0.005)
    slow, found, nu = calibrated_diffs(noise, sessions=12, diffs=20, effect=0.06)
    assert slow == 0.0
    # If all rows move as one, a session is one observation and 12 of them say little: see docs/diff.md.
    assert found >= (0.25 if common else 0.9)
    assert nu == pytest.approx(12, abs=3) if common else nu > 200


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
