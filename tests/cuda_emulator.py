"""The CUDA kernels on a CPU: compiled by the host's C++ compiler with cuda_emulation/, called by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from fabench.attention_op import Layout
from fabench_backends.cuda_flash import api, build, configs
from fabench_backends.cuda_flash import backward as shared
from fabench_backends.cuda_flash.configs import Config, Mask

EMULATION = Path(__file__).parent / "cuda_emulation"
ARCH = "sm_90a"
SMS, L2_BYTES = 4, 1 << 18
"""The emulated card is small, so that a few tiles fill it, and K and V of a few heads."""


@cache
def library(config: Config) -> ctypes.CDLL:
    """The configuration as a shared library with one function, `launch`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("emulating the CUDA kernels needs g++")
    folder = Path(tempfile.gettempdir(), f"fabench-cuda-emulation-{_digest()}")
    folder.mkdir(exist_ok=True)
    result = folder / f"{hashlib.sha256(repr(config).encode()).hexdigest()[:16]}.so"
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:  # other test processes may compile the same right now
            _compile(compiler, config, Path(own)).rename(result)
    return ctypes.CDLL(str(result))


def _compile(compiler: str, config: Config, folder: Path) -> Path:
    _sources(folder)
    params, kernel = PARAMS[config.kernel], config.kernel
    main, made = folder / "main.cpp", folder / "main.so"
    main.write_text(
        f'#include "ptx.cuh"\n#include "{config.source}"\n'
        f'extern "C" long launch(const {params}* p, unsigned x, unsigned y, unsigned z, bool descending) {{\n'
        f"    struct Call {{ const {params}* p; void operator()() const {{ {kernel}(*p); }} }};\n"
        f"    emulator::launch(Call{{p}}, x, y, z, {config.tile.threads}, descending);\n"
        "    return emulator::bank_conflicts;\n}\n"
    )
    macros = [f"-D{name}={value}" for name, value in config.macros.items()]
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-w", "-fno-strict-aliasing"]
    subprocess.run([compiler, *flags, *macros, str(main), "-o", str(made)], check=True, timeout=300)
    return made


PARAMS = {
    "flash_v1_fwd": "V1ForwardParams",
    "flash_v1_bwd": "BackwardParams",
    "flash_v2_fwd": "ForwardParams",
    "flash_v2_bwd": "BackwardParams",
    "flash_fwd_combine": "ForwardParams",
    "flash_bwd_prepare": "PrepareParams",
    "flash_bwd_finish": "FinishParams",
}


def _digest() -> str:
    files = [*sorted(build.FOLDER.glob("*.cu*")), *sorted(EMULATION.iterdir())]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _sources(folder: Path) -> None:
    """The kernels' sources, with shared variables as statics, beside the emulator's own ptx.cuh."""
    for file in build.FOLDER.glob("*.cu*"):
        text = file.read_text().replace("extern __shared__", "extern").replace("__shared__", "static")
        (folder / file.name).write_text(text)
    for file in EMULATION.iterdir():
        shutil.copy(file, folder / file.name)


class EmulatedKernel:
    """Stands for launch.Kernel."""

    descending = False
    """Run the warps of a CTA in descending order."""
    bank_conflicts = 0
    """Of ldmatrix, over all launches."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, grid: tuple[int, int, int], params: ctypes.Structure) -> None:
        """Run every CTA, one after another."""
        function = library(self.config).launch
        function.restype = ctypes.c_long
        EmulatedKernel.bank_conflicts += function(ctypes.byref(params), *grid, ctypes.c_bool(EmulatedKernel.descending))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[EmulatedKernel]]:
    """The operators of cuda_flash take CPU tensors and run emulated kernels."""
    import torch

    from fabench_backends.cuda_flash import v1_ops, v2_ops

    def loaded(name: str, t: Layout, d: int, mask: Mask) -> EmulatedKernel:
        return EmulatedKernel(configs.config(name, d, api.DTYPES[t.dtype], mask, ARCH))

    def helper(name: str, t: Layout) -> EmulatedKernel:
        return EmulatedKernel(configs.helper(name, api.DTYPES[t.dtype]))

    for module in (v1_ops, v2_ops, shared):
        monkeypatch.setattr(module, "loaded", loaded)
        module.plan.cache_clear()
    for module in (v2_ops, shared):
        monkeypatch.setattr(module, "helper", helper)
    for module in (v1_ops, v2_ops):
        monkeypatch.setattr(module, "check", lambda *args: None)
        monkeypatch.setattr(module, "remembered", module.numbers)
    card = SimpleNamespace(multi_processor_count=SMS, L2_cache_size=L2_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(EmulatedKernel, "descending", False)
    monkeypatch.setattr(EmulatedKernel, "bank_conflicts", 0)
    yield EmulatedKernel
    for module in (v1_ops, v2_ops, shared):
        module.plan.cache_clear()
