"""The Triton backend's facts and refusals, without running a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabench.case import Case
from fabench.device import Device
from fabench_backends.triton_flash import triton as backend
from fabench_backends.triton_flash.configs import FAMILIES, KERNELS, WIDTHS, declared, family, width

ROOT = Path(__file__).resolve().parents[2]
CPU = Device("cpu", "cpu")
H200 = Device("cuda", "NVIDIA H200", capability=(9, 0))
L40 = Device("cuda", "NVIDIA L40", capability=(8, 9))
V100 = Device("cuda", "Tesla V100", capability=(7, 0))


def case(**fields: Any) -> Case:
    return Case(**{"batch": 1, "heads": 8, "kv_heads": 2, "Nq": 100, "Nk": 130, "d": 64, **fields})


def test_importing_the_package_imports_neither_torch_nor_triton() -> None:
    program = "import sys, fabench_backends.triton_flash; print('torch' in sys.modules, 'triton' in sys.modules)"
    paths = f"import sys; sys.path[:0] = [{str(ROOT / 'harness')!r}, {str(ROOT / 'backends')!r}]; "
    done = subprocess.run([sys.executable, "-c", paths + program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    "fields",
    [
        {"d": 16},
        {"d": 72},
        {"d": 256, "dv": 128},
        {"causal": True, "alignment": "top_left"},
        {"window": (10, 3), "softcap": 20.0, "scale": -0.5},
        {"Nq": 0},
        {"Nq": 150, "Nk": 3, "causal": True, "direction": "backward"},
        {"dtype": "fp32", "d": 256},
    ],
)
def test_it_takes_what_the_kernels_take(fields: dict[str, Any]) -> None:
    assert backend.reasons(case(**fields), H200) == []


@pytest.mark.parametrize(
    ("fields", "device", "reason"),
    [
        ({"d": 264}, H200, "d = 264 > 256"),
        ({"d": 60}, H200, "d = 60 is not a multiple of 8"),
        ({"dv": 20}, H200, "dv = 20 is not a multiple of 8"),
        ({"dtype": "fp32", "d": 160}, L40, "fp32 with d = 160 > 128 on compute capability 8.9"),
        ({}, V100, "compute capability 7.0 < 8.0"),
        ({"dtype": "bf16"}, CPU, "dtype bf16 on device cpu: Triton's interpreter multiplies bf16 tiles wrongly"),
    ],
)
def test_a_refusal_names_both_numbers(fields: dict[str, Any], device: Device, reason: str) -> None:
    assert any(text.startswith(reason) for text in backend.reasons(case(**fields), device))


def test_a_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert backend.unavailable(CPU) == "device cpu: only Triton's interpreter runs there; set TRITON_INTERPRET=1"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    assert backend.unavailable(CPU) is None


def test_every_kernel_has_a_configuration_for_every_width_and_family() -> None:
    for kernel in KERNELS:
        for name in FAMILIES:
            for columns in WIDTHS:
                for itemsize in (2, 4):
                    refused = (name, columns, itemsize) == ("small", 256, 4)
                    found = declared(kernel, name, columns, itemsize)
                    assert bool(found) != refused
                    for config in found:
                        assert config.BLOCK_M % 16 == 0
                        assert config.BLOCK_N % 16 == 0
                        assert not config.tma or name == "hopper", "only Hopper has the copy engine"


def test_a_family_follows_the_shared_memory_and_the_copy_engine() -> None:
    assert [family(arch) for arch in (80, 86, 89, 90, 100, 120)] == [
        "ampere", "small", "small", "hopper", "hopper", "small",
    ]  # fmt: skip


def test_a_head_dim_is_padded_to_the_next_power_of_two() -> None:
    assert [width(d) for d in (8, 16, 40, 64, 72, 96, 128, 160, 256)] == [16, 16, 64, 64, 128, 128, 128, 256, 256]
