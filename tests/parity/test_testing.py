"""`fabench.testing` and the pytest plugin, in process and as a project of its own."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fabench
from fabench.case import Case
from fabench.interpreter import HERE
from fabench.testing import assert_parity, cases
from mutants.gallery import mutants
from mutants.variants import VARIANTS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_kernel"
CASE = Case(1, 2, 33, 33, 16, causal=True, direction="backward")


def test_a_right_kernel_passes() -> None:
    assert_parity(VARIANTS["Right"], CASE)
    for case in cases(VARIANTS["Right"], where="N<=33,batch=1")[:3]:
        assert_parity(VARIANTS["Right"], case)


def unscaled(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0)


def test_a_wrong_kernel_raises_with_its_name_and_a_script(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_parity(unscaled, CASE, repro=tmp_path)
    message = str(caught.value)
    assert "unscaled is wrong: O matches attention without the 1/sqrt(d) scale" in message
    assert "smallest failing case: N=" in message
    (script,) = tmp_path.glob("repro_*.py")
    assert str(script) in message
    assert subprocess.run([sys.executable, str(script)], capture_output=True, check=False).returncode == 1


def test_a_kernel_without_a_file_has_no_script(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no script"):
        assert_parity(lambda q, k, v: torch.zeros_like(q), CASE.from_key({**CASE.key, "causal": False}), repro=tmp_path)


def test_probes_and_profiles_can_be_chosen(tmp_path: Path) -> None:
    masks = mutants()["DkWithoutScale"]
    assert_parity(masks, CASE, probes=["mask", "type"])
    with pytest.raises(AssertionError):
        assert_parity(masks, CASE, probes=["rho"], repro=tmp_path)


def test_a_refused_case_skips_the_test() -> None:
    @fabench.backend(name="picky", dtypes=("fp32",))
    def picky(q, k, v):
        return q

    with pytest.raises(pytest.skip.Exception, match="dtype bf16"):
        assert_parity(picky, Case(1, 1, 8, 8, 8, dtype="bf16"))


def test_cases_are_those_the_kernel_declares() -> None:
    assert all(not t.case.causal and t.case.window is None for t in cases(lambda q, k, v: q))
    assert any(t.case.window for t in cases())
    assert str(cases()[0]) == cases()[0].label()


def run_pytest(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    installed = any(p.value == "fabench.pytest_plugin" for p in importlib.metadata.entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "fabench.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", *arguments]
    environment = {**HERE.environment(), "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_example_projects_tests_pass() -> None:
    done = run_pytest(EXAMPLE, "-k", "sink and fp16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_a_wrong_kernel_fails_its_projects_tests_by_name(tmp_path: Path) -> None:
    source = (EXAMPLE / "kernel.py").read_text()
    assert "> rows" in source
    (tmp_path / "kernel.py").write_text(source.replace("> rows", "> rows + 1"))
    (tmp_path / "test_kernel.py").write_text((EXAMPLE / "test_kernel.py").read_text())
    (tmp_path / "pyproject.toml").write_text((EXAMPLE / "pyproject.toml").read_text())
    done = run_pytest(
        tmp_path, "-k", "causal and fp16 and not inputs", "--fabench-profile", "quick", "--fabench-repro", "found"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lets one key past the diagonal through" in done.stdout
    assert "shown without fabench by: python found" in done.stdout.replace(os.sep, "/")
    assert list((tmp_path / "found").glob("repro_*.py"))
