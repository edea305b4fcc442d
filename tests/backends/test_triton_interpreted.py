"""Every declared configuration of the Triton kernels, run by the interpreter on the CPU and compared with fp64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabench_backends.triton_flash.configs import FAMILIES, KERNELS, WIDTHS, Config, declared

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
BOUND = {"float16": 1.5e-3, "float32": 5e-6}
"""Frobenius error of a kernel that rounds P and dS once: seen at most 5e-4, and 4e-6 where the exact gradient is 0."""


def interpret(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the cases in a child, because TRITON_INTERPRET must be set before triton is imported."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("harness", "backends", "tests"))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "triton_oracle.py")],
        input=json.dumps(cases), capture_output=True, text=True, env=environment, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def check(cases: list[dict[str, Any]]) -> None:
    """Each case is within the bound, and its empty rows are O = 0, dQ = 0, LSE = -inf."""
    for case, result in zip(cases, interpret(cases), strict=True):
        bound = BOUND[case["dtype"]]
        for name in {"O", "dQ", "dK", "dV"} & result.keys():
            assert result[name] <= bound, f"{name} is off by {result[name]:.2e} > {bound}: {case}"
        assert result["LSE"] <= 2e-5 * case.get("std", 1.0) ** 2, f"LSE is off by {result['LSE']:.2e}: {case}"
        assert result["empty"], f"a row without keys must have O = 0, dQ = 0 and LSE = -inf: {case}"


def of_configurations(dtype: str, itemsize: int) -> list[dict[str, Any]]:
    """One small causal case a distinct configuration: full, masked and tail tiles, and a padded head dim."""
    cases, seen = [], set()
    for family in FAMILIES:
        for kernel in KERNELS:
            for width in WIDTHS:
                for config in declared(kernel, family, width, itemsize):
                    key = (kernel, width, config.BLOCK_M, config.BLOCK_N, config.tma)
                    if key in seen:
                        continue
                    seen.add(key)
                    cases.append(one_configuration(kernel, config, width, dtype))
    return cases


def one_configuration(kernel: str, config: Config, width: int, dtype: str) -> dict[str, Any]:
    fields = [config.BLOCK_M, config.BLOCK_N, config.num_warps, config.num_stages, config.tma]
    Nq = config.BLOCK_M + 5
    return {
        "dtype": dtype, "Nq": Nq, "Nk": Nq + config.BLOCK_N, "d": width - 8 if width > 16 else 16,
        "causal": True, "configs": {kernel: fields}, "forward_only": kernel == "forward",
    }  # fmt: skip


def test_every_configuration_is_right_in_fp16() -> None:
    check(of_configurations("float16", 2))


def test_every_configuration_is_right_in_fp32() -> None:
    check(of_configurations("float32", 4))


LARGE_TILES = {kernel: [64, 64, 4, 1] for kernel in KERNELS}
"""The interpreter takes its time by the tile, so the masks are tried on few large ones."""
MASKS: list[dict[str, Any]] = [
    {"Nq": 130, "causal": True, "heads": 4, "kv_heads": 2, "batch": 2},
    {"Nq": 65, "Nk": 150, "causal": True, "heads": 3, "kv_heads": 1},
    {"Nq": 150, "Nk": 65, "causal": True},
    {"Nq": 150, "Nk": 65, "causal": True, "alignment": "top_left"},
    {"Nq": 65, "Nk": 150, "causal": True, "alignment": "top_left"},
    {"Nq": 150, "window": [20, 10]},
    {"Nq": 150, "window": [3, -1]},
    {"Nq": 150, "window": [-1, 3]},
    {"Nq": 200, "window": [70, 0], "causal": True},
    {"Nq": 300, "Nk": 100, "window": [2, 2]},
    {"Nq": 300, "Nk": 100, "window": [2, 2], "alignment": "top_left"},
    {"Nq": 100, "Nk": 300, "window": [64, 64]},
    {"Nq": 70, "Nk": 150, "window": [0, 0], "alignment": "top_left"},
    {"Nq": 1},
    {"Nq": 1, "Nk": 150, "causal": True},
    {"Nq": 150, "Nk": 1, "causal": True},
    {"Nq": 97},
    {"Nq": 128, "Nk": 64},
]


def test_every_kind_of_mask_is_right_at_odd_sizes() -> None:
    check([{"dtype": "float32", "d": 16, "configs": LARGE_TILES, **mask} for mask in MASKS])


def test_scales_softcap_head_dims_and_strides_are_right() -> None:
    base = {"dtype": "float32", "Nq": 70, "Nk": 90, "d": 24, "causal": True, "configs": LARGE_TILES}
    check(
        [
            {**base, "scale": -0.1},
            {**base, "scale": 0.0},
            {**base, "scale": 1.0},
            {**base, "softcap": 2.0},
            {**base, "softcap": 30.0, "scale": -0.3, "window": [9, 0]},
            {**base, "dv": 40},
            {**base, "d": 40, "dv": 16},
            {**base, "d": 8},
            {**base, "layout": "bshd", "heads": 2, "batch": 2},
            {**base, "dtype": "float16", "layout": "bshd", "heads": 2, "batch": 2, "d": 64},
            {**base, "std": 6.0},
        ]
    )
