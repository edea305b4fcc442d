"""The scripts that a GPU runs for the in-repo kernels, tried on a CPU: what they measure, decide, write and fill in."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import kernel_bars  # noqa: E402
import kernel_bench  # noqa: E402
import kernel_figures  # noqa: E402
import sanitize  # noqa: E402

MEASURED = ROOT / "results" / "nvidia-h200" / "kernel_bars.json"


def row(backend: str, tflops: float, direction: str = "forward", **shape: Any) -> dict[str, Any]:
    base = {"d": 64, "N": 4096, "causal": False, "batch": 4, "heads": 32}
    return {"backend": backend, "direction": direction, **base, **shape, "ns": 1e6, "tflops": tflops}


@pytest.fixture
def results() -> dict[str, Any]:
    """All bars met, just."""
    rows = [
        row(name, speed * scale, direction, N=N)
        for N, scale in ((4096, 1.0), (2048, 0.9))
        for direction in ("forward", "backward")
        for name, speed in {"cuda-v1": 70, "cuda-v2": 300, "triton": 420, "sdpa-flash": 300, "flex": 400}.items()
    ]
    v1 = [row("cuda-v1", 120, batch=8, heads=16), row("cuda-v1", 13, batch=1, heads=16)]
    v1 += [row("cuda-v2", 300, batch=8, heads=16), row("cuda-v2", 260, batch=1, heads=16)]
    memory = [{**row("cuda-v2", 0), "workspace_bytes": 105, "expected_bytes": 100}]
    return {
        "device": "a card", "torch": "2.11", "versions": {"nvrtc": "13.0"}, "gemm_tflops": 800.0, "samples": 12,
        "rows": rows, "v1": v1, "memory": memory, "wrong": [], "left_out": [], "wall_s": 9.0,
    }  # fmt: skip


def verdicts(results: dict[str, Any]) -> dict[str, bool | None]:
    return {found["bar"]: found["met"] for found in kernel_bars.bars(results)}


def test_bars_just_reached_are_met_and_those_without_a_rival_are_neither(results: dict[str, Any]) -> None:
    assert verdicts(results) == {
        "cuda-v2 forward / sdpa-flash": True,
        "cuda-v2 backward / sdpa-flash": True,
        "cuda-v2 forward / flash-attn": None,
        "cuda-v2 backward / flash-attn": None,
        "triton forward / flex": True,
        "triton backward / flex": True,
        "cuda-v1 forward TFLOP/s, batch x heads >= 128": True,
        "cuda-v1 forward / prediction, batch x heads < 128": True,
        "LSE + accumulators / workspace": True,
    }


@pytest.mark.parametrize(
    ("find", "factor", "missed"),
    [
        (("cuda-v2", "forward", 4096), 0.99, "cuda-v2 forward / sdpa-flash"),
        (("cuda-v2", "backward", 4096), 0.89, "cuda-v2 backward / sdpa-flash"),
        (("triton", "forward", 2048), 0.99, "triton forward / flex"),
        (("triton", "backward", 2048), 0.8, "triton backward / flex"),
        (("cuda-v1", "forward", 2048), 0.9, "cuda-v1 forward TFLOP/s, batch x heads >= 128"),
    ],
)
def test_a_slower_case_misses_its_bar_and_no_other(
    find: tuple[str, str, int], factor: float, missed: str, results: dict[str, Any]
) -> None:
    (found,) = [r for r in results["rows"] if (r["backend"], r["direction"], r["N"]) == find]
    found["tflops"] *= factor
    assert [name for name, met in verdicts(results).items() if met is False] == [missed]


def test_one_case_below_its_least_misses_the_bar_whatever_the_mean(results: dict[str, Any]) -> None:
    by_place = [r for r in results["rows"] if (r["backend"], r["direction"]) == ("cuda-v2", "forward")]
    by_place[0]["tflops"] *= 1.5
    by_place[1]["tflops"] *= 0.91
    assert [name for name, met in verdicts(results).items() if met is False] == ["cuda-v2 forward / sdpa-flash"]


@pytest.mark.parametrize("speed", [11, 19])
def test_a_prediction_that_is_off_either_way_is_missed(speed: float, results: dict[str, Any]) -> None:
    results["v1"][1]["tflops"] = speed
    assert [name for name, met in verdicts(results).items() if met is False] == [
        "cuda-v1 forward / prediction, batch x heads < 128"
    ]


def test_a_workspace_a_tenth_too_large_is_missed(results: dict[str, Any]) -> None:
    results["memory"][0]["workspace_bytes"] = 111
    assert [name for name, met in verdicts(results).items() if met is False] == ["LSE + accumulators / workspace"]


def test_the_handful_covers_what_all_cases_cover() -> None:
    import cuda_check
    import triton_check

    for cases, features in (
        (cuda_check.CASES, kernel_bars.cuda_features),
        ([*triton_check.configuration_cases(), *triton_check.shape_cases()], kernel_bars.triton_features),
    ):
        few = kernel_bars.covering(cases, features)
        assert set().union(*map(features, few)) == set().union(*map(features, cases))
        assert len(few) < len(cases)


def test_the_script_runs_on_a_cpu_and_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "bars.json"
    code = kernel_bars.main(["--dry", "--out", str(out), "--N", "4096", "--d", "64", "--samples", "3"])
    found = json.loads(out.read_text())
    assert code in (0, 3)
    assert {(r["backend"], r["direction"]) for r in found["rows"]} == {
        (name, direction) for name in kernel_bench.STAND_INS for direction in ("forward", "backward")
    }
    assert all("error" not in r for r in found["rows"])
    assert {r["backend"] for r in found["memory"]} == set(kernel_bench.OURS)
    assert "cuda-v2 forward / sdpa-flash: mean" in capsys.readouterr().out
    for readme in kernel_figures.READMES:
        kernel_figures.fill(readme.read_text(), found)


def test_what_there_is_no_time_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_bars.main(["--dry", "--out", str(tmp_path / "bars.json"), "--seconds", "0", "--N", "4096", "--d", "64"])
    found = json.loads((tmp_path / "bars.json").read_text())
    assert found["rows"] == []
    assert len([line for line in found["left_out"] if "N=" in line]) == 4 + len(kernel_bars.V1_SHAPES)
    assert "no case measured" in capsys.readouterr().out


def test_the_readmes_hold_every_block_of_figures_and_no_other() -> None:
    named = [
        match[2] for readme in kernel_figures.READMES for match in kernel_figures.BLOCK.finditer(readme.read_text())
    ]
    assert set(named) == set(kernel_figures.FIGURES)


def test_figures_are_filled_in_with_shares_of_the_gemm(results: dict[str, Any]) -> None:
    results["bars"] = kernel_bars.bars(results)
    text = "a\n<!-- figures: cuda_forward -->\nold\n<!-- end -->\n<!-- figures: cuda_v1 -->\n<!-- end -->\nz\n"
    filled = kernel_figures.fill(text, results)
    assert "| d = 64, full, N = 4k | 300 (38%) | 70 (9%) | 300 | 400 |" in filled
    assert "| N = 4096, 16 heads | 13 | 15 | 260 | 20.0x |" in filled
    assert "old" not in filled
    assert filled.startswith("a\n")
    assert kernel_figures.fill(filled, results) == filled


@pytest.mark.skipif(not MEASURED.exists(), reason="not measured yet: results/nvidia-h200/kernel_bars.json")
def test_the_readmes_show_the_figures_of_the_stored_file() -> None:
    results = kernel_figures.load(MEASURED)
    for readme in kernel_figures.READMES:
        assert kernel_figures.fill(readme.read_text(), results) == readme.read_text()


@pytest.mark.skipif(not MEASURED.exists(), reason="not measured yet: results/nvidia-h200/kernel_bars.json")
def test_the_header_of_cuda_v2s_forward_says_what_was_measured_to_a_few_per_cent() -> None:
    """Not to the digit: the source would change with every measurement, and with it the kernels' cache."""
    by_backend = kernel_figures.speeds(kernel_figures.load(MEASURED), "forward")[128, False, 16384]
    source = kernel_figures.READMES[0].with_name("flash_v2_fwd.cu").read_text()
    found = re.search(r"d = 128, N = 16k: (\d+) TFLOP/s, ([\d.]+)x the flash kernel of SDPA", source)
    assert found is not None
    assert float(found[1]) == pytest.approx(by_backend["cuda-v2"], rel=0.03)
    assert float(found[2]) == pytest.approx(by_backend["cuda-v2"] / by_backend["sdpa-flash"], rel=0.03)


def test_tables_of_the_readmes_are_whole() -> None:
    """A row after an empty line has no head, and is no table."""
    for readme in kernel_figures.READMES:
        lines = ["", *readme.read_text().splitlines(), ""]
        for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
            if line.startswith("|") and not above.startswith("|"):
                assert below.startswith(("|--", "| --")), f"{readme.parent.name}: {line[:80]}"


def test_reads_of_keys_and_values_are_counted_in_times_over() -> None:
    case = {"batch": 2, "heads": 4, "kv_heads": 2, "Nq": 64, "Nk": 128, "d": 32}
    Q, KV = 2 * 4 * 64 * 32 * 2, 2 * 2 * 2 * 128 * 32 * 2
    kernel = {
        "time_ns": 2e6, "dram_read_bytes": Q + 3 * KV, "dram_written_bytes": 5e6, "tensor": 0.651, "occupancy": 0.122,
        "registers": 255, "shared_bytes": 98304,
    }  # fmt: skip
    profiles = [{"backend": "cuda-v2", "tool": "ncu", "kernels": [kernel]}]

    shown = kernel_figures.counters(("cuda-v2",))({"profile": {"case": case, "profiles": profiles}})

    assert "| cuda-v2 | 2.00 | 0.00 | 0.005 | 3.0 | 65% | 12% | 255 | 96 |" in shown
    assert kernel_figures.counters(("cuda-v2",))({}) == kernel_figures.MISSING


CLEAN = "launched triton: 9 cases\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("output", "code", "clean", "text"),
    [
        (CLEAN, 0, True, "clean"),
        ("launched triton: 9 cases\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0, True,
         "clean"),
        ("========= Invalid __global__ read of size 2\n" + CLEAN.replace("0 errors", "3 errors"), 86, False,
         "3 errors, first: Invalid __global__ read of size 2"),
        ("========= ERROR SUMMARY: 0 errors\n", 0, False, "did not run to its end (exit code 0)"),
        ("launched triton: 9 cases\n", 0, False, "did not run to its end (exit code 0)"),
        ("ValueError: no\n", 1, False, "did not run to its end (exit code 1): ValueError: no"),
    ],
)  # fmt: skip
def test_a_tool_is_clean_only_if_it_says_so_of_launches_that_ended(
    output: str, code: int, clean: bool, text: str
) -> None:
    finding = sanitize.read("memcheck", "triton", code, output, 1.0)
    assert finding.clean == clean
    assert finding.text.startswith(text)


FAKE = """#!/bin/sh
while [ "$1" != --launch ]; do shift; done
[ "$2" = online ] && { echo "launched online: 1 cases"; echo "========= ERROR SUMMARY: 0 errors"; exit 0; }
sleep 60
"""


def test_each_tool_and_backend_gets_a_line_and_no_more_than_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    found = sanitize.sanitize(str(fake), ["memcheck", "racecheck"], ["online", "naive"], 1.5, "cpu")
    assert [(f.backend, f.clean) for f in found] == [
        ("online", True), ("naive", False), ("online", False), ("naive", False),
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memcheck  online   clean (")
    assert "stopped for want of time" in lines[1]
    assert "left out for want of time" in lines[3]


def test_a_backend_is_launched_on_small_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--launch", "online", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == "launched online: 10 cases\n"


def test_a_missing_sanitizer_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--sanitizer", "/nowhere/compute-sanitizer"]) == 2
    assert capsys.readouterr().out.startswith("'compute-sanitizer' must be installed")
