"""`fabench kernels` names, compiles and judges kernels without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
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

    package: Any = ModuleType("planted_kernels")
    package.kernel_names = lambda arch: [s["name"] for s in found]
    package.kernel_stats = lambda arch, name, fresh: next(s for s in found if s["name"] == name)
    package.cache_folder = lambda: Path("/kept/here")
    package.launched_as = lambda arch: {"sm_90": "sm_90a"}.get(arch, arch)
    monkeypatch.setitem(sys.modules, "planted_kernels", package)
    monkeypatch.setattr(kernels, "kernel_packages", lambda: iter([package]))
    return found


def with_gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """NVML of a machine with these GPUs; with none, of one whose driver does not answer."""
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})

    def start() -> None:
        if not capabilities:
            raise nvml.NVMLError("Driver Not Loaded")

    nvml.nvmlInit, nvml.nvmlShutdown = start, lambda: None
    nvml.nvmlDeviceGetCount = lambda: len(capabilities)
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetCudaComputeCapability = lambda handle: capabilities[handle]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("capabilities", "archs"),
    [(((9, 0), (7, 0), (8, 0), (9, 0)), {"sm_90a", "sm_80"}), (((7, 5),), {"sm_90a"}), ((), {"sm_90a"})],
)
def test_kernels_are_built_for_the_gpus_here_and_for_sm_90a_where_none_can_run_them(
    monkeypatch: pytest.MonkeyPatch, capabilities: tuple[tuple[int, int], ...], archs: set[str]
) -> None:
    with_gpus(monkeypatch, *capabilities)
    lines = fabench("list", "--only", "d32").output.splitlines()
    assert {line.split()[0] for line in lines} == archs
    assert len(lines) == len(archs)
    assert fabench("build").exit_code == 0
    assert fabench("list", "--arch", "sm_89", "--only", "d32").output == "sm_89 kernel d32\n"


@pytest.mark.usefixtures("planted")
def test_stats_prints_a_line_per_configuration_and_architecture() -> None:
    result = fabench("stats", "--arch", "sm_80,sm_90a", "--only", "d96")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "arch    configuration      registers    stack B    spills B    shared KiB    limit KiB    compile s",
        "------  ---------------  -----------  ---------  ----------  ------------  -----------  -----------",
        "sm_80   kernel d96               128          0           0           1.0          4.0         0.50",
        "sm_90a  kernel d96               128          0           0           1.0          4.0         0.50",
        "",
        "2 configurations compiled, 0 faults",
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"spills": 8}, "sm_90a kernel d64: 8 bytes of spills, must be at most 0"),
        ({"stack": 928}, "sm_90a kernel d64: a stack frame of 928 bytes, must be 0"),
        ({"shared_bytes": 5000}, "sm_90a kernel d64: 5000 bytes of shared memory, must be at most 4096"),
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
    assert "4 configurations compiled" in result.output
    assert result.output.splitlines()[-2].endswith(", 1 fault")
    assert result.stderr == f"{fault}\n"


def test_spills_that_a_kernel_is_known_to_need_are_no_fault(planted: list[dict[str, Any]]) -> None:
    planted[0].update(spills=200, spill_limit=256)
    assert fabench("stats").exit_code == 0
    planted[0].update(spills=257)
    assert "sm_90a kernel d32: 257 bytes of spills, must be at most 256" in fabench("stats").stderr


def test_a_kernel_that_compiles_for_too_long_fails_where_that_is_asked(planted: list[dict[str, Any]]) -> None:
    planted[2].update(seconds=2.0041)
    assert fabench("stats").exit_code == 0
    result = fabench("stats", "--fresh", "--max-seconds", "2")
    assert result.exit_code == 1
    assert result.stderr == "sm_90a kernel d96: compiled in 2.004 s, must be at most 2 s\n"
    planted[2].update(seconds=2.0)
    assert fabench("stats", "--fresh", "--max-seconds", "2").exit_code == 0


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("limit", ["nan", "inf", "0", "-1"])
def test_a_limit_that_nothing_could_miss_or_meet_is_refused(limit: str) -> None:
    assert fabench("stats", "--max-seconds", limit).exit_code == 2


@pytest.mark.usefixtures("planted")
def test_build_refuses_an_architecture_under_which_no_launch_looks_and_stats_does_not() -> None:
    assert fabench("stats", "--arch", "sm_80,sm_90").exit_code == 0
    result = fabench("build", "--arch", "sm_80,sm_90")
    assert result.exit_code == 2
    assert result.output == "Error: '--arch' must be sm_90a, as which a launch looks for it, got 'sm_90'\n"


def test_build_says_of_kernels_that_are_not_kept_when_they_are_compiled() -> None:
    result = fabench("build", "--only", "triton forward")
    assert result.exit_code == 2
    assert result.output == (
        "Error: '--only' must be part of the name of a kernel that is kept, got 'triton forward': "
        "what has it is compiled on its first launch\n"
    )
    assert "a configuration's name on sm_90a, got 'v4'" in fabench("build", "--only", "v4").output


def test_the_cuda_kernels_are_kept_under_the_name_that_a_device_asks_for() -> None:
    from fabench_backends.cuda_flash import launched_as

    asked = ("sm_80", "sm_80a", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_120", "sm_999")
    assert [launched_as(arch) for arch in asked] == [
        "sm_80", "sm_80", "sm_89", "sm_90a", "sm_90a", "sm_100a", "sm_120a", "sm_999",
    ]  # fmt: skip


def test_a_kernel_that_cannot_be_kept_fails_the_build_and_no_other_command(planted: list[dict[str, Any]]) -> None:
    planted[0].update(unkept="No space left on device")
    assert fabench("stats").exit_code == 0
    result = fabench("build")
    assert result.exit_code == 1
    assert result.output.strip() == (
        "Error: '/kept/here' must be a folder that can be written, to keep 'kernel d32' for sm_90a, "
        "got No space left on device; name another in FABENCH_CACHE"
    )


@pytest.mark.usefixtures("planted")
def test_shards_divide_the_configurations_among_them() -> None:
    names = [fabench("list", "--shard", f"{i}/3").output.splitlines() for i in range(3)]
    assert names == [["sm_90a kernel d32", "sm_90a kernel d128"], ["sm_90a kernel d64"], ["sm_90a kernel d96"]]
    assert fabench("build", "--shard", "1/3").output == "1 configuration compiled in '/kept/here', 0 faults\n"
    assert "0 configurations compiled" in fabench("stats", "--shard", "7/9").output


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "hopper"), "Error: '--arch' must be architectures such as sm_80,sm_90a, got 'hopper'"),
        (("--arch", "sm_90a,"), "Error: '--arch' must be architectures such as sm_80,sm_90a, got ''"),
        (("--arch", "sm_081"), "Error: '--arch' must be architectures such as sm_80,sm_90a, got 'sm_081'"),
        (
            ("--arch", "sm_80a"),
            "Error: '--arch' must be without a letter before sm_90, or an 'f' before sm_100, got 'sm_80a'",
        ),
        (
            ("--arch", "sm_90f"),
            "Error: '--arch' must be without a letter before sm_90, or an 'f' before sm_100, got 'sm_90f'",
        ),
        (("--arch", "sm_80,sm_75"), "Error: '--arch' must be sm_80 or newer, which the kernels need, got 'sm_75'"),
        (
            ("--only", "v4"),
            "Error: '--only' must be part of a configuration's name on sm_90a, got 'v4'; see 'fabench kernels list'",
        ),
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
    assert "'flash_bwd_finish bf16' must be compiled for a known architecture, got 'sm_999'; NVRTC" in result.output


def test_processes_compile_as_one_does_and_the_triton_kernels_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="compiling the CUDA kernels needs cuda-core and NVRTC")
    monkeypatch.setattr(kernels, "FEW", 1)
    one, two = (fabench("stats", "--only", "flash_bwd_finish", "--jobs", n).output for n in "12")
    assert one == two
    assert len(fabench("list", "--only", "triton forward bf16").output.splitlines()) > 20


@pytest.mark.parametrize("arch", ["sm_99", "sm_999"])
def test_an_architecture_that_triton_does_not_know_ends_no_process(arch: str) -> None:
    result = fabench("stats", "--arch", arch, "--only", "triton forward fp32 d16 full")
    assert result.exit_code == 1
    assert "full 64x32 w8 s1' must be compiled for a known architecture, got 'sm_99" in result.output
    assert "; known are sm_80, sm_86," in result.output


def test_the_interpreter_must_be_off_where_kernels_are_compiled() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = "from fabench.cli import main; main()"
    command = [sys.executable, "-c", program, "kernels", "stats", "--only", "triton forward fp32 d16 full"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: 'triton forward fp32 d16 full 64x32 w8 s1' must be compiled without Triton's interpreter; "
        "unset TRITON_INTERPRET\n"
    )


def test_what_triton_raises_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from fabench_backends.triton_flash import resources

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("PassManager::run failed\nmore of it")

    monkeypatch.setattr(resources, "stats", fail)
    result = fabench("stats", "--only", "triton forward fp32 d16 full")
    assert result.exit_code == 1
    assert result.output == (
        "Error: 'triton forward fp32 d16 full 64x32 w8 s1' must compile for sm_90a, got PassManager::run failed\n"
    )


@pytest.mark.parametrize(
    ("missing", "only", "message"),
    [
        ("cuda.bindings", "finish bf16", "NVRTC must be installed to compile CUDA kernels, got "),
        ("cuda.core", "finish bf16", "cuda-core must be installed to compile CUDA kernels, got "),
        ("triton", "triton forward bf16 d16 full", "triton must be installed to compile 'triton forward bf16 d16 full"),
    ],
)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    missing: str, only: str, message: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from fabench.cli import main; main()"
    environment = {**os.environ, "FABENCH_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, "kernels", "stats", "--fresh", "--only", only]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {message}")
    assert done.stderr.endswith("; pip install 'fabench[gpu]'\n")
    assert done.stderr.count("\n") == 1
