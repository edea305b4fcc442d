"""docs/parity.md and `fabench parity --help` state the limits, sizes and counts of the code."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from fabench.cli.parity import command
from fabench.parity.battery import MOST, NEGLSE_SHAPES, Request, build
from fabench.parity.calibrate_grid import grid
from fabench.parity.calibration import DRIFT_FACTOR, DRIFT_SLACK
from fabench.parity.probes.repeat import RUNS, STRESS_RUNS
from fabench.parity.runner import CALL_LIMIT_S
from fabench.parity.thresholds import EXPLAINED, FP32_FACTOR, MAX_EL, MAX_RHO, RMS_RHO, WARN_RHO
from fabench.parity.trial import Trial
from fabench.testing import ANYTHING
from mutants.gallery import mutants
from mutants.variants import VARIANTS

TEXT = " ".join((Path(__file__).parents[1] / "docs" / "parity.md").read_text().split())
PLAIN_RIGHT = ("naive", "online", "sdpa-math", "sdpa-flash")
"""Right kernels of the proof that are no variants of the tests' own."""


def longest(trials: list[Trial]) -> int:
    return max(max(trial.case.Nq, trial.case.Nk) for trial in trials)


def test_the_limits_of_the_rule_are_stated() -> None:
    assert f"max rho <= {MAX_RHO:g}; rms rho <= {RMS_RHO:g}; max el <= {MAX_EL:g}." in TEXT
    assert f"A max rho above {WARN_RHO:g} is a warning" in TEXT
    assert FP32_FACTOR == 2.0  # "has twice these limits"
    passes = f"({MAX_RHO:g}, in fp32 without TF32 {MAX_RHO * FP32_FACTOR:g})"
    assert f"explains {EXPLAINED * 100:g} % of the wrong rows with a rho that passes {passes}" in TEXT
    assert f"exceeds {DRIFT_FACTOR:g} times the calibrated one plus {DRIFT_SLACK:g}" in TEXT


def test_the_profiles_are_as_large_as_stated() -> None:
    quick, full = build(ANYTHING, Request()), build(ANYTHING, Request("full"))
    designed, neglse = ([t for t in quick if ("neglse" in t.probes) == asked] for asked in (False, True))

    assert f"at most {MOST['quick']} cases with N <= {longest(designed)} (" in TEXT
    assert f"{len(neglse)} more for `neglse`, with N up to {longest(neglse)}" in TEXT
    assert len(neglse) == 2 * len(NEGLSE_SHAPES)
    assert f"at most {MOST['full']} with N <= {longest(build(ANYTHING, Request('full', 'cuda')))}" in TEXT
    assert f"(on a CPU {longest(full)})" in TEXT
    assert f"equal calls again ({RUNS}, stress {STRESS_RUNS} under load)" in TEXT


def test_the_time_limit_of_a_call_is_stated() -> None:
    cpu, cuda = (f"{CALL_LIMIT_S[device]:g}" for device in ("cpu", "cuda"))

    assert f"({cpu} on a CPU, {cuda} on a GPU)" in TEXT
    assert f"[default: {cpu}, on a GPU {cuda}]" in " ".join(CliRunner().invoke(command, ["--help"]).output.split())


def test_the_calibration_grid_is_stated() -> None:
    cases = list(grid("cuda", 2))

    assert f"On a GPU the grid is {len(cases)} cases" in TEXT
    assert "Its first 16 have every value of every axis, its first 52 every two values together" in TEXT


def test_the_kernels_of_the_proof_are_counted() -> None:
    assert f"holds {len(mutants())} kernels that misbehave" in TEXT
    assert f"{len(VARIANTS) + len(PLAIN_RIGHT)} right kernels" in TEXT
