"""`fabench doctor` names what is missing, what for, and what to do; it never fails because something is missing."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabench import checkup, probe, registry, torch_here
from fabench.backend import Backend, Facts
from fabench.cli import main
from fabench.device import Device

PARTS = ("python", "NVIDIA driver", "torch", "device", "NVML", "triton", "cuda.core", "C compiler", "ncu")


class Needy(Backend):
    facts = Facts("needy", module="a_module_that_is_not_here", install="pip install needy")


def test_every_part_is_reported_and_the_exit_code_is_0() -> None:
    result = CliRunner().invoke(main, ["doctor", "--format", "json"])
    assert result.exit_code == 0, result.output
    found = {finding["part"]: finding for finding in json.loads(result.output)}
    assert set(PARTS) <= set(found)
    assert found["torch"]["state"] == "ok"


def test_a_missing_library_says_what_for_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "shipped", lambda: {"needy": Needy()})
    [finding] = checkup._libraries(Device("cpu", "test"))
    assert finding.state == "missing"
    assert finding.found.startswith("cannot import a_module_that_is_not_here: ModuleNotFoundError")
    assert finding.remedy == "pip install needy"
    assert finding.serves == "needy"


def test_a_library_for_gpus_is_not_missing_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeedyGpu(Backend):
        facts = Facts("needy", module="a_module_that_is_not_here", devices=("cuda",))

    monkeypatch.setattr(registry, "shipped", lambda: {"needy": NeedyGpu()})
    [finding] = checkup._libraries(Device("cpu", "test"))
    assert (finding.state, finding.found) == ("not needed", "device cpu, takes cuda")


def test_the_compiler_that_a_variable_names_is_the_one_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-here")
    monkeypatch.delenv("CC", raising=False)
    found = {finding.part: finding for finding in checkup._compilers()}
    assert found["C++ compiler"].state == "missing"
    assert found["C++ compiler"].found == "no a-compiler-that-is-not-here on PATH"
    assert found["C++ compiler"].remedy == "install g++, or name another in CXX"
    assert found["C compiler"].found.startswith("/")


def test_a_tool_is_found_beside_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    tool = tmp_path / "toolkit-13" / "bin" / "ncu"
    tool.parent.mkdir(parents=True)
    tool.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checkup, "TOOL_FOLDERS", (str(tmp_path / "toolkit-*" / "bin"),))
    assert checkup._tool("ncu", "profiling", "install it", gpu=True).found == str(tool)
    missing = checkup._tool("compute-sanitizer", "races", "install it", gpu=True)
    assert (missing.state, missing.remedy) == ("missing", "install it")


@pytest.mark.parametrize("columns", ["40", "100"])
def test_the_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    findings = [
        checkup.Finding("torch", "ok", "2.13.0"),
        checkup.Finding("device", "ok", "cpu"),
        checkup.Finding(
            "ncu", "missing", "not on PATH", "install Nsight Compute, which comes with the toolkit", "profile"
        ),
        checkup.Finding("NVML", "not needed", "NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
    ]
    monkeypatch.setattr(probe, "call", lambda request: {"findings": [finding.to_json() for finding in findings]})
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert "NVMLError_LibraryNotFound:" in result.output.split()
    assert "1 missing; everything else works without it." in " ".join(result.output.split())
    assert "do:  install Nsight Compute" in " ".join(result.output.split()).replace("do: install", "do:  install")


HIDDEN = "raise ImportError('libtorch.so: no such file', name='torch')"


def hide(module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `module` fail to import in child processes."""
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(HIDDEN)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_without_torch_the_rest_is_reported_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("torch", tmp_path, monkeypatch)
    result = CliRunner().invoke(main, ["doctor"])
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "torch missing must be importable, got ImportError: libtorch.so: no such file do:" in text.replace(
        "for: everything ", ""
    )
    assert "do: install it (pytorch.org/get-started)" in text
    assert text.endswith("nothing can be measured without torch.")


@pytest.mark.parametrize("arguments", [["list", "backends"], ["list", "devices"], ["run", "smoke"]])
def test_a_command_that_needs_torch_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    hide("torch", tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.output == (
        "Error: 'torch' must be importable, got ImportError: libtorch.so: no such file; "
        "install it (pytorch.org/get-started)\n"
    )


def test_a_library_that_fabench_itself_needs_and_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(HIDDEN.replace("torch", "yaml"))
    command = [sys.executable, "-m", "fabench", "run", "smoke"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 'yaml' must be importable, got ImportError: libyaml.so")
    assert len(done.stderr.splitlines()) == 1


def test_a_broken_library_that_does_not_give_its_name_is_one_sentence_with_it(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise ImportError('built for another Python')")
    command = [sys.executable, "-m", "fabench", "run", "smoke"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 'yaml' must be importable, got ImportError: built for another Python")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'torch' must be importable, got AttributeError: module 'torch' has no attribute '__version__'"),
        (
            "__version__ = '2.8.0+cu129'\nTensor = cuda = backends = None",
            "'torch' must be 2.9 or newer, got 2.8.0+cu129",
        ),
    ],
)
def test_a_torch_that_is_hollow_or_too_old_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    listed = CliRunner().invoke(main, ["list", "devices"])
    assert (listed.exit_code, listed.output) == (2, f"Error: {sentence}; install it (pytorch.org/get-started)\n")
    doctor = CliRunner().invoke(main, ["doctor"])
    assert doctor.exit_code == 1
    assert sentence.removeprefix("'torch' ") in " ".join(doctor.output.split())


def test_the_oldest_torch_is_the_one_that_the_package_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert f"torch>={'.'.join(map(str, torch_here.OLDEST))}" in project["dependencies"]


def test_a_torch_that_ends_the_process_is_not_said_to_be_a_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = CliRunner().invoke(main, ["list", "backends"])
    assert result.exit_code == 2
    assert result.output == (
        "Error: 'torch' or a backend's library must load without ending its process, got a crash by SIGABRT\n"
    )


def test_a_module_with_a_line_of_its_own_has_no_second_one() -> None:
    parts = [finding.part for finding in checkup.findings()]
    assert len(parts) == len(set(parts))


@pytest.mark.parametrize("on", [True, False])
def test_importing_torch_leaves_the_collector_as_it_was(on: bool) -> None:
    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        torch_here.imported()
        assert gc.isenabled() is on
    finally:
        (gc.enable if was_on else gc.disable)()
