"""Cubins are built once, kept whole, shared by processes, and never trusted when damaged."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fabench_backends.cuda_flash import build as building
from fabench_backends.cuda_flash import configs
from fabench_backends.cuda_flash.build import Built, KernelError, Stats, architecture, build, key, parse_log

pytest.importorskip("cuda.bindings", reason="compiling the CUDA kernels needs cuda-core and NVRTC")

SMALL = configs.helper("flash_bwd_finish", "bf16")
LOG = """ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'flash_bwd_finish' for 'sm_90a'
ptxas info    : Function properties for flash_bwd_finish
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 128 bytes smem
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("FABENCH_CACHE", str(tmp_path))
    return tmp_path / "cubin"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled from now on."""
    names: list[str] = []
    compile_now = building.compile_now

    def counted(config: configs.Config, arch: str) -> Built:
        names.append(config.name)
        return compile_now(config, arch)

    monkeypatch.setattr(building, "compile_now", counted)
    return names


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_a_cubin_is_an_elf_file_for_the_architecture_with_what_ptxas_said(compilations: list[str]) -> None:
    built = build(SMALL, "sm_90a")
    assert built.cubin.startswith(b"\x7fELF")
    assert 0 < built.stats.registers <= 255
    assert built.stats.faults("sm_90a") == []
    assert compilations == [SMALL.name]


def test_the_second_build_reads_the_cache(compilations: list[str]) -> None:
    assert build(SMALL, "sm_90a") == build(SMALL, "sm_90a")
    assert len(compilations) == 1


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "empty", "no header", "edited", "other fields", "not an object", "not text"]
)
def test_a_damaged_entry_is_built_anew_and_replaced(damage: str, cache: Path, compilations: list[str]) -> None:
    whole = build(SMALL, "sm_90a")
    (entry,) = entries(cache)
    good = entry.read_bytes()
    digest, header, cubin = good.split(b"\n", 2)

    def signed(header: bytes) -> bytes:
        content = header + b"\n" + cubin
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    entry.write_bytes(
        {
            "truncated": good[:-100],
            "flipped": good[:-100] + bytes([good[-100] ^ 1]) + good[-99:],
            "empty": b"",
            "no header": cubin,
            "edited": good.replace(b'"registers": ', b'"registers": 1', 1),
            "other fields": signed(header.replace(b"registers", b"registrars")),
            "not an object": signed(b"123"),
            "not text": b"\xff" + digest[1:] + b"\n" + header + b"\n" + cubin,
        }[damage]
    )
    assert build(SMALL, "sm_90a").stats.registers == whole.stats.registers
    assert build(SMALL, "sm_90a").cubin == whole.cubin
    assert len(compilations) == 2
    build(SMALL, "sm_90a")
    assert len(compilations) == 2


BUILD = """
import hashlib, sys
from fabench_backends.cuda_flash import configs
from fabench_backends.cuda_flash.build import build
config = next(c for c in configs.configs("sm_90a") if c.name == sys.argv[1])
print(hashlib.sha256(build(config, "sm_90a").cubin).hexdigest())
"""


def test_processes_that_build_the_same_kernel_at_once_all_get_it_whole(cache: Path) -> None:
    environment = {**os.environ, "FABENCH_CACHE": str(cache.parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BUILD, SMALL.name]
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {child.communicate(timeout=120)[0] for child in children}
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
    assert [entry.suffix for entry in entries(cache)] == [".cubin"]


def test_a_cache_that_cannot_be_written_only_costs_time(cache: Path, compilations: list[str]) -> None:
    cache.parent.joinpath("cubin").write_text("a file where the folder should be")
    assert build(SMALL, "sm_90a").cubin.startswith(b"\x7fELF")
    assert build(SMALL, "sm_90a").unkept in ("File exists", "Not a directory")
    assert len(compilations) == 2


def test_a_disk_that_fills_up_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert build(SMALL, "sm_90a").unkept == "No space left on device"
    assert entries(cache) == []


def test_an_interrupt_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(SMALL, "sm_90a")
    assert entries(cache) == []


@pytest.mark.parametrize(
    ("own", "xdg", "home", "folder"),
    [
        ("/own", "/xdg", "/home/me", "/own/cubin"),
        ("", "/xdg", "/home/me", "/xdg/fabench/cubin"),
        ("", "", "/home/me", "/home/me/.cache/fabench/cubin"),
        ("", "", "~", "/.cache/fabench/cubin"),
    ],
)
def test_the_cache_is_where_the_user_wants_it(
    own: str, xdg: str, home: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last as for a user of a container, who is in no list of users."""
    monkeypatch.setenv("FABENCH_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", home)
    assert building.cache_folder() == Path(folder)


def test_compile_time_is_that_of_the_compiler_and_not_of_what_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.75])
    monkeypatch.setattr(building.time, "thread_time", lambda: next(ticks))
    assert build(SMALL, "sm_90a", use_cache=False).stats.seconds == 0.75


@pytest.mark.parametrize("arch", ["sm_80a", "sm_90f"])
def test_a_letter_that_an_architecture_does_not_have_is_said_to_be_so(arch: str) -> None:
    with pytest.raises(KernelError, match=f"known architecture, got '{arch}'; NVRTC .* with an 'a' from sm_90 on"):
        build(SMALL, arch)


def test_a_build_without_the_cache_neither_reads_nor_writes_it(cache: Path, compilations: list[str]) -> None:
    build(SMALL, "sm_90a", use_cache=False)
    build(SMALL, "sm_90a", use_cache=False)
    assert len(compilations) == 2
    assert not cache.exists()


def test_the_key_changes_with_everything_that_decides_the_cubin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key(SMALL, "sm_90a")
    assert key(SMALL, "sm_90a") == first
    others = {
        key(SMALL, "sm_80"),
        key(replace(SMALL, dtype="fp16"), "sm_90a"),
        key(replace(SMALL, extra=(("MORE", "1"),)), "sm_90a"),
    }
    monkeypatch.setattr(building, "nvrtc_version", lambda: "12.9")
    others.add(key(SMALL, "sm_90a"))
    monkeypatch.undo()
    for changed in (SMALL.source, "ptx.cuh"):
        folder = tmp_path / changed
        folder.mkdir()
        for file in building.FOLDER.glob("*.cu*"):
            folder.joinpath(file.name).write_bytes(file.read_bytes() + (b"// more" if file.name == changed else b""))
        monkeypatch.setattr(building, "FOLDER", folder)
        others.add(key(SMALL, "sm_90a"))
        monkeypatch.undo()
    assert len(others | {first}) == 7


def test_a_source_that_does_not_compile_names_the_kernel_and_the_line() -> None:
    with pytest.raises(KernelError) as failure:
        build(replace(SMALL, extra=(("WARPS", "nonsense"),)), "sm_90a")
    assert str(failure.value) == (
        "'flash_bwd_finish bf16' must compile for sm_90a, "
        'got flash_bwd_finish.cu(5): error: identifier "nonsense" is undefined'
    )


def test_the_log_of_ptxas_is_read_and_a_log_without_figures_refused() -> None:
    log = LOG.format(stack=8, stores=4, loads=12, registers=255)
    stats = parse_log(log, replace(SMALL, tile=configs.TILES["flash_v2_fwd"][64][0], d=64), 0.25)
    assert (stats.registers, stats.stack_bytes, stats.spill_store_bytes, stats.spill_load_bytes) == (255, 8, 4, 12)
    assert stats.smem_bytes == 128 + 49152
    with pytest.raises(KernelError, match="must report the registers of 'flash_bwd_finish bf16'"):
        parse_log("ptxas info : nothing", SMALL, 0.0)


def test_what_must_not_ship_is_a_fault_with_both_numbers() -> None:
    good = Stats(255, 0, 0, 0, 227 * 1024, 0.1)
    assert good.faults("sm_90a") == []
    assert replace(good, spill_load_bytes=4).faults("sm_90a") == ["4 bytes of register spills, must be 0"]
    assert replace(good, stack_bytes=928).faults("sm_90a") == ["a stack frame of 928 bytes, must be 0"]
    assert good.faults("sm_89") == ["232448 bytes of shared memory > 101376 on sm_89"]
    warning = "ptxas warning : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"
    log = LOG.format(stack=0, stores=0, loads=0, registers=32) + warning
    assert parse_log(log, SMALL, 0.1).faults("sm_90a") == [warning]


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
)
def test_the_architecture_is_the_devices_own(capability: tuple[int, int], arch: str) -> None:
    assert architecture(capability) == arch
