"""docs/measurement.md: its figures are those of the committed proof, and its rules those of the code."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from fabench.measure.canary import COPY_BYTES, GEMM_N, USUAL_N
from fabench.measure.rules import (
    ESTIMATE_CALLS,
    ESTIMATE_S,
    GATE_GIVE_UP_S,
    GATE_TOLERANCE,
    HOST_MARGIN,
    ONE_CALL_NS,
    RULES,
    SPIN_CAP_NS,
)
from fabench.measure.stopping import CHECKPOINTS, LONG_CHECKPOINTS, Limits
from fabench.measure.sustained import SETTLE_CAP_S
from fabench.names import FLAGS, StopReason

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "measurement.md"
PROOFS = [
    ROOT / "results" / "nvidia-h200" / name for name in ("measure_proof.json", "idle_proof.json", "wake_proof.json")
]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proof_figures", ROOT / "tests" / "gpu" / "proof_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def proof(**parts: Any) -> dict[str, Any]:
    return {"rules": "2", "device": "NVIDIA X", "torch": "2.11", "wall_s": 200.0, "skipped": [], "errors": {}, **parts}


def test_the_guide_shows_the_figures_of_the_committed_proofs(figures: ModuleType) -> None:
    guide = GUIDE.read_text()

    assert figures.fill(guide, figures.joined(PROOFS)) == guide


def test_a_part_comes_from_the_first_proof_that_has_it(figures: ModuleType, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps({"rules": "3", "gate": [1]}))
    second.write_text(json.dumps({"rules": "2", "gate": [2], "idle": [3], "wall_s": 4}))

    assert figures.joined([first, second]) == {"rules": "3", "gate": [1], "idle": [3]}


def test_every_figure_has_its_block_in_the_guide_and_every_block_its_figure(figures: ModuleType) -> None:
    blocks = [name for _, name, _ in figures.BLOCK.findall(GUIDE.read_text())]

    assert sorted(blocks) == sorted(figures.FIGURES)


def test_filling_replaces_only_what_is_between_the_marks_and_twice_is_once(figures: ModuleType) -> None:
    guide = "before\n<!-- figures: where -->\nold\n<!-- end -->\nafter\n"
    measured = proof(power_limit_w=700.0, driver="580", skipped=["idle"], errors={"spin": "no"})
    filled = figures.fill(guide, measured)

    assert filled == (
        "before\n<!-- figures: where -->\n"
        "NVIDIA X, 700 W, driver 580, torch 2.11, in 200 s of device time, by version 2 of the rules. "
        "Left out: idle; spin (no).\n"
        "<!-- end -->\nafter\n"
    )
    assert (
        figures.fill(filled, proof(power_limit_w=700.0, driver="580", skipped=["idle"], errors={"spin": "no"}))
        == filled
    )


def test_a_part_that_was_not_measured_says_so(figures: ModuleType) -> None:
    for name, figure in figures.FIGURES.items():
        if name != "where":
            assert figure(proof()) == figures.MISSING


def test_repeats_are_shown_beside_rounds_and_continuous_timing(figures: ModuleType) -> None:
    aa = {
        "rows": [
            {
                "row": "r",
                "burst_ns": [1.0e6, 1.1e6, 1.2e6],
                "burst_cv": 0.001,
                "continuous_ns": [2.1e6, 2e6, 2.05e6],
                "continuous_cv": 0.04,
                "continuous_sm_mhz": [1980.0, 1710.0, None],
            }
        ],
        "n": 30,
        "repeats": 3,
        "overhead_ms_per_row": 42.4,
    }
    fresh, beside = ({"row": "r", "ns": ns, "cv": cv} for ns, cv in (([1.01e6, 1e6], 0.002), ([1.1e6, 1e6], 0.05)))
    measured = proof(aa=aa, rounds={"rows": [fresh]}, rounds_beside={"rows": [beside]})
    shown = figures.repeats(measured)

    assert "| r | a quiet machine | 1, 1.01 | 0.20 % |" in figures.rounds(measured)
    assert "| r | another, its second GPU at work | 1, 1.1 | 5.00 % |" in figures.rounds(measured)
    assert "| r | 1.1 | 0.10 % | 0.20 % | 2-2.1 | 4.00 % | 1710-1980 |" in shown
    assert "3 repeats in one process and 2 fresh processes" in shown
    assert "42 ms a row" in shown


def test_what_a_rest_does_is_told_by_process_and_by_way(figures: ModuleType) -> None:
    processes = [[["spin", 0.0, us, 1980], ["rest", 0.0, 2 * us, None]] for us in (1000.0, 1004.0)]
    shown = figures.wake(proof(wake={"row": {}, "processes": processes}))

    assert "| spin | 1, 1.004 | 0.0 % |" in shown
    assert "| rest | 2, 2.008 | 0.0 % |" in shown


def test_agreement_memory_and_idle_figures_are_ratios_of_what_was_measured(figures: ModuleType) -> None:
    agreed = {
        "row": "r",
        "burst_ns": 1.01e6,
        "profiler_ns": 1e6,
        "profiler_ratio": 1.01,
        "do_bench_ns": 1.02e6,
        "do_bench_ratio": 0.99,
    }
    assert "| r | 1.01 | 1 | 1.00 % | 1.02 | -1.00 % |" in figures.agreement(proof(agreement=[agreed]))
    grown = [
        {"backend": "b", "direction": "forward", "N": N, "peak_bytes": N * N, "predicted_bytes": 2**20}
        for N in (1024, 2048)
    ]
    assert "| b forward N=2048 | 4.0 | 4.00x | 1.0 |" in figures.memory(proof(memory=grown))
    setting = {"duty": 0.1, "gated": False, "retry_s": 0.1, "device_s": 0.5, "idle_s": 4.5}
    setting |= {"cv": {"r": 0.0005}, "ns": {"r": [1e6, 1e6]}}
    assert "| 10 % | no | 2.50 | 1 (0.05 %) |" in figures.idle(proof(idle=[setting]))
    assert "| 10 % | asked again after 100 ms |" in figures.idle(proof(idle=[{**setting, "gated": True}]))


def test_the_guide_states_the_rules_of_the_code() -> None:
    guide, burst, limits = " ".join(GUIDE.read_text().split()), RULES["burst"], Limits()

    for stated in (
        f"windows of at most {burst.window_ns / 1e6:.0f} ms",
        f"at least {burst.long_call_idle_ns / 1e6:.0f} ms",
        f"Up to {ESTIMATE_CALLS} calls within {ESTIMATE_S} s",
        f"at most {burst.warmup_cap_s} s (on a CPU {RULES['cpu'].warmup_cap_s} s",
        f"longer than {ONE_CALL_NS / 1e9} s is warm after one",
        f"{HOST_MARGIN} times the host time",
        f"A spin lasts {SPIN_CAP_NS / 1e6:.0f} ms at most",
        f"at least {burst.span_ns / 1e3:.0f} us ({RULES['graph'].span_ns / 1e3:.0f} us in a graph)",
        f"after at least {RULES['sustained'].settle_s:.0f} s to settle ({SETTLE_CAP_S:.0f} s at most)",
        f"more than {GATE_TOLERANCE:.1%}".replace("%", " %"),
        f"after {GATE_GIVE_UP_S:.0f} s the present value",
        "{}, {}, {}, {} or {} samples".format(*CHECKPOINTS),
        "may stop at {}, {} or {} too".format(*LONG_CHECKPOINTS[: -len(CHECKPOINTS)]),
        f"an {USUAL_N['cuda']}³ GEMM per dtype, in fp32 {GEMM_N['cuda']['fp32']}³",
        f"a {COPY_BYTES['cuda'] >> 30} GiB copy",
        f"on a CPU {USUAL_N['cpu']}³ and {COPY_BYTES['cpu'] >> 20} MiB",
        f"at most {limits.half_width * 100:.2f} % of it",
        f"{limits.wall_s:.0f} s have passed",
        f"{limits.seconds} s of timed work",
        f"above {burst.unstable_half_width:.0%}".replace("%", " %"),
        f"(`hot` calls {burst.long_warmup_tolerance:.0%}, on a CPU {RULES['cpu'].warmup_tolerance:.0%})".replace(
            "%", " %"
        ),
        f"again every {burst.gate_retry_s * 1e3:.0f} ms",
    ):
        assert stated in guide, stated
    assert round(1 / burst.duty - 1) == 4  # "four times their work"
    for reason in set(get_args(StopReason)) - {"interrupted"}:
        assert f"`{reason}`" in guide


def test_every_flag_is_in_the_guide() -> None:
    table = GUIDE.read_text().partition("## Flags")[2].partition("\n## ")[0]

    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(FLAGS)
