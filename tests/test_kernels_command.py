"""`fabench kernels` names, compiles and judges kernels without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fabench.cli import kernels, main

GOOD = {"registers": 128, "stack": 0, "spills": 0, "shared_bytes": 1024, "shared_limit": 4096, "seconds": 0.5}


def fabench(*arguments: str) -> Any:
    """Run the command in process."""
    return CliRunner().invoke(main, ["kernels", *arguments])


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configurations of the only kernel package there is."""
    found: list[dict[str, Any]] = [{**GOOD, "name": f"kernel d{d}"} for d in (32, 64, 96, 128)]

    def iter_stats(arch: str, only: str | None) -> Iterator[dict[str, Any]]:
        return (s for s in found if only is None or only in s["name"])

    package = SimpleNamespace(iter_stats=iter_stats, iter_names=lambda arch: (s["name"] for s in found))
    monkeypatch.setattr(kernels, "kernel_packages", lambda: iter([package]))
    return found


@pytest.mark.usefixtures("planted")
def test_stats_prints_a_line_per_configuration_and_architecture() -> None:
    result = fabench("stats", "--arch", "sm_80,sm_90a", "--only", "d96")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "arch    configuration    registers    stack    spills    shared KiB    limit KiB    compile s",
        "------  ---------------  -----------  -------  --------  ------------  -----------  -----------",
        "sm_80   kernel d96       128          0        0         1.0           4.0          0.50",
        "sm_90a  kernel d96       128          0        0         1.0           4.0          0.50",
        "2 configurations compiled, 0 faults",
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spills": 8}, "sm_90a kernel d64: 8 bytes of spills, must be 0"),
        ({"stack": 928}, "sm_90a kernel d64: 928 bytes of stack, must be 0"),
        ({"shared_bytes": 5000}, "sm_90a kernel d64: 5000 bytes of shared memory > 4096"),
        ({"warnings": ["ptxas warning : (C7508) ignored"]}, "sm_90a kernel d64: ptxas warning : (C7508) ignored"),
    ],
)
@pytest.mark.parametrize("command", ["stats", "build"])
def test_what_must_not_ship_fails_the_command_and_is_named(
    command: str, change: dict[str, Any], fault: str, planted: list[dict[str, Any]]
) -> None:
    planted[1].update(change)
    result = fabench(command)
    assert result.exit_code == 1
    assert "4 configurations compiled, 1 faults" in result.output
    assert fault in result.stderr


@pytest.mark.usefixtures("planted")
def test_shards_divide_the_configurations_among_them() -> None:
    names = [fabench("list", "--shard", f"{i}/3").output.splitlines() for i in range(3)]
    assert names == [["sm_90a kernel d32", "sm_90a kernel d128"], ["sm_90a kernel d64"], ["sm_90a kernel d96"]]
    assert "1 configurations compiled" in fabench("build", "--shard", "1/3").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "hopper"), "Error: '--arch' must be architectures such as sm_80,sm_90a, got 'hopper'"),
        (("--shard", "3/3"), "Error: '--shard' must be i/n with 0 <= i < n, got '3/3'"),
    ],
)
def test_arguments_that_are_none_exit_with_2(arguments: tuple[str, ...], message: str) -> None:
    result = fabench("stats", *arguments)
    assert result.exit_code == 2
    assert result.output.strip() == message


def test_the_cuda_kernels_are_found_and_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings", reason="compiling the CUDA kernels needs cuda-core and NVRTC")
    monkeypatch.setenv("FABENCH_CACHE", str(tmp_path))
    listed = fabench("list", "--only", "flash_v2_bwd d64").output
    assert "sm_90a flash_v2_bwd d64 bf16 band" in listed
    result = fabench("build", "--only", "flash_bwd_finish")
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("cubin/*.cubin"))) == 2


def test_an_architecture_that_nvrtc_does_not_know_is_an_error_that_names_it() -> None:
    pytest.importorskip("cuda.bindings", reason="compiling the CUDA kernels needs cuda-core and NVRTC")
    result = fabench("build", "--arch", "sm_999", "--only", "flash_bwd_finish")
    assert result.exit_code == 1
    assert "'flash_bwd_finish bf16' must compile for sm_999" in result.output
