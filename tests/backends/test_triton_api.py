"""`attention` of the Triton backend as a user calls it: operators, autograd, torch.compile, empty and NaN inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "triton_contract.py"


@pytest.fixture(scope="module")
def child() -> subprocess.CompletedProcess[str]:
    """One child for all the checks, because TRITON_INTERPRET must be set before triton is imported."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("harness", "backends", "tests"))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


CHECKS = [
    "the_operators_keep_torchs_rules",
    "gradients_flow_through_O_and_LSE",
    "a_gradient_of_LSE_alone_is_right",
    "an_expanded_dO_is_right",
    "torch_compile_takes_it_whole",
    "empty_sequences_come_out_as_the_contract_says",
    "the_backend_prepares_a_case",
    "a_nan_reaches_exactly_the_rows_that_depend_on_it",
    "very_negative_scores_stay_finite",
    "a_gradient_of_the_LSE_of_an_empty_row_is_as_good_as_none",
    "a_saturated_softcap_still_has_its_tiny_slope",
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract(child: subprocess.CompletedProcess[str], check: str) -> None:
    assert check in child.stdout.split(), child.stderr[-3000:]


def test_every_check_of_the_child_is_listed_here() -> None:
    defined = [line.strip(" ,\n") for line in PROGRAM.read_text().partition("CHECKS = [")[2].partition("]")[0].split()]
    assert [name for name in defined if name] == CHECKS
