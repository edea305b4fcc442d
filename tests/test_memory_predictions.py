"""What is predicted of a backend's memory is what was measured on an H200, so that no launch is refused for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabench import cost, registry
from fabench.case import Case
from fabench.names import Direction
from fabench.resultfile import read

RESULTS = Path(__file__).parents[1] / "results" / "nvidia-h200"
BELOW, ABOVE = 0.8, 1.05
"""Of the prediction. Not all that it counts is there at one time, least of all where S is small beside the outputs."""
APART = {"online": "tiles whose size is its own", "sdpa-math": "half inputs' figures, which are twice those of fp32"}
"""Backends whose prediction is only an upper bound, or a rough one."""
LARGE = 16 << 20
"""Bytes from which on what stays constant does not count."""


@pytest.mark.parametrize("suite", ["training", "long_context"])
def test_predicted_memory_is_what_was_measured(suite: str) -> None:
    shipped, compared, wrong = registry.shipped(), 0, list[str]()
    for row in read(RESULTS / f"{suite}.jsonl", allow_partial=True).rows:
        memory = row.memory
        if row.status != "ok" or memory is None or memory.peak_bytes is None or memory.peak_bytes < LARGE:
            continue
        facts, case = shipped[row.backend].facts, Case.from_key(row.key)
        predicted = cost.extra_memory_parts(case, facts.memory, facts.matrices).total
        if row.backend in APART or (row.backend == "sdpa-efficient" and case.d > 128):  # O in fp32 beyond d = 128
            continue
        ratio = memory.peak_bytes / predicted
        compared += 1
        if not BELOW <= ratio <= ABOVE:
            wrong.append(f"{row.backend} {case.label()}: {ratio:.2f} of what is predicted")
    assert compared > 100
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("direction", "masked", "matrices", "held"),
    [
        ("forward", False, (2, 3, 1), 2),
        ("forward", True, (2, 3, 1), 2),
        ("backward", False, (2, 3, 1), 3),
        ("backward", True, (2, 3, 1), 4),
        ("backward", True, None, 2),
    ],
)
def test_what_an_implementation_holds_takes_the_place_of_the_textbook(
    direction: Direction, masked: bool, matrices: cost.Matrices | None, held: int
) -> None:
    case = Case(2, 3, 128, 128, 64, causal=masked, direction=direction)
    assert cost.extra_memory_parts(case, "standard", matrices).workspace == held * cost.score_bytes(case)


@pytest.mark.parametrize(("direction", "copies"), [("forward", 1), ("backward", 1.5)])
def test_a_flash_kernel_holds_float32_copies_beside_its_row_sums(direction: Direction, copies: float) -> None:
    case = Case(2, 3, 128, 128, 64, direction=direction)
    found = cost.extra_memory_parts(case, "flash", (1, 1.5, 0)).workspace
    assert found == cost.lse_bytes(case) + copies * (2 * 3 * 128 * 64) * 4
