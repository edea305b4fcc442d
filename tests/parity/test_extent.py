"""Which rows of an output count as wrong: by the limits of the verdict, whatever the dtype and the tensor."""

from __future__ import annotations

import pytest
import torch

from fabench import inputs, reference
from fabench.case import Case
from fabench.names import Accuracy
from fabench.parity.extent import bad_rows, row_rho
from fabench.parity.matching import matches
from fabench.parity.thresholds import limits, row_limits
from fabench.reference import Reference


def made(dtype: str, accuracy: Accuracy, **fields: object) -> tuple[Case, inputs.Tensors, Reference]:
    case = Case(1, 1, 32, 32, 16, dtype=dtype, **fields)  # type: ignore[arg-type]
    tensors = inputs.make(case, "cpu")
    return case, tensors, reference.compute(case, tensors, accuracy=(accuracy,))


def off_by(expected: Reference, name: str, accuracy: Accuracy, rho: list[float]) -> torch.Tensor:
    """The right output with its first rows off by so many tolerances, all in their first channel."""
    e = expected[name]
    got = e.value.clone()
    for row, factor in enumerate(rho):
        at = (0, 0, row) if name == "LSE" else (0, 0, row, 0)
        got[at] += factor * e.tolerance[accuracy][0, 0, row]
    return got


def wrong(dtype: str, accuracy: Accuracy, rho: list[float], name: str = "O") -> list[int]:
    """The rows that are called wrong where the first are off by these rho."""
    _, _, expected = made(dtype, accuracy)
    got, tolerance = off_by(expected, name, accuracy, rho), expected[name].tolerance[accuracy]
    bad = bad_rows(expected[name], got, tolerance, row_limits(name, dtype, accuracy))
    return [int(row) for row in bad[0, 0].nonzero().flatten()]


@pytest.mark.parametrize(("dtype", "accuracy", "rows"), [("bf16", "A", [0, 1]), ("fp32", "A", [1])])
def test_a_row_is_wrong_by_itself_above_the_max_rho_of_its_dtype(
    dtype: str, accuracy: Accuracy, rows: list[int]
) -> None:
    """Above 4, in fp32 without TF32 above 8."""
    assert wrong(dtype, accuracy, [6.0, 10.0, 2.0]) == rows


@pytest.mark.parametrize(
    ("dtype", "accuracy", "count"), [("bf16", "A", 32), ("fp32", "A", 0), ("fp32", "A-tf32", 32), ("fp16", "B", 32)]
)
def test_rows_that_are_wrong_together_are_above_the_rms_rho_of_their_dtype(
    dtype: str, accuracy: Accuracy, count: int
) -> None:
    """Above 1.25, in fp32 without TF32 above 2.5."""
    assert len(wrong(dtype, accuracy, [2.0] * 32)) == count


def test_lse_is_wrong_as_soon_as_its_verdict_says_so() -> None:
    assert wrong("bf16", "A", [0.9, 1.1], "LSE") == [1]


@pytest.mark.parametrize("accuracy", ["A", "B", "A-tf32"])
def test_what_the_verdict_passes_has_no_wrong_row(accuracy: Accuracy) -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        assert row_limits("dQ", dtype, accuracy) == limits(dtype, accuracy)[:2]


def test_a_fault_in_fp32_is_named_though_its_kernel_is_off_by_what_fp32_may() -> None:
    """Scale forgotten, and 6 tolerances of rounding on top, which a right fp32 kernel is allowed."""
    case, tensors, expected = made("fp32", "A")
    unscaled = reference.compute(Case(1, 1, 32, 32, 16, dtype="fp32", scale=1.0), tensors, accuracy=("A",))
    got = unscaled["O"].value.clone()
    got[..., 0] += 6.0 * expected["O"].tolerance["A"]
    rho = row_rho(got, unscaled["O"].value, expected["O"].tolerance["A"])

    found = matches(case, tensors, {"O": got.float()}, expected, "A")

    assert 5.0 < float(rho.max()) < 8.0
    assert "without the 1/sqrt(d) scale" in found[0].sentence
