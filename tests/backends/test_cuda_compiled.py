"""The CUDA kernels compile, all of them for Hopper: no spills, no stack frame, no C75xx warning, within shared memory.

Nothing here is read from a cache. For the other architectures each version of the sources compiles another tenth;
`make kernels` compiles all.
"""

from __future__ import annotations

import hashlib

import pytest

from fabench_backends.cuda_flash import build, configs

pytest.importorskip("cuda.core", reason="compiling the CUDA kernels needs cuda-core and NVRTC")


def tenth() -> int:
    """Which one: a digest of all that decides what is compiled."""
    files = sorted([*build.FOLDER.glob("*.cu*"), *build.FOLDER.glob("*.py")])
    return int(hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(), 16) % 10


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept cubin would prove nothing."""

    def refuse(*args: object) -> None:
        raise AssertionError("the cache must not be asked")

    monkeypatch.setattr(build, "_read", refuse)


@pytest.mark.parametrize("config", configs.configs("sm_90a"), ids=lambda c: c.name)
def test_every_configuration_compiles_for_hopper(config: configs.Config) -> None:
    stats = build.build(config, "sm_90a", use_cache=False).stats
    assert stats.faults("sm_90a") == []
    assert stats.registers <= 255


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
def test_a_tenth_of_the_configurations_compiles_for_other_architectures(arch: str) -> None:
    if not build.supports(arch):
        pytest.skip(f"NVRTC {build.nvrtc_version()} does not know {arch}")
    chosen = configs.configs(arch)[tenth() :: 10]
    faults = {c.name: build.build(c, arch, use_cache=False).stats.faults(arch) for c in chosen}
    assert len(chosen) >= 7
    assert {name: found for name, found in faults.items() if found} == {}
