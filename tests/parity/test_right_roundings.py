"""Roundings that right kernels have been blamed for are modelled: each case failed a kernel that makes them."""

from __future__ import annotations

import pytest
import torch

from fabench.case import Case
from fabench.parity.examiner import Examiner
from fabench.parity.subject import Subject
from fabench.parity.trial import GradientOrder, Trial
from fabench.reference.repeats import repeats
from mutants.kernel import Kernel
from mutants.variants import VARIANTS
from proof import CPU, bare


class RoundedElsewhere(Kernel):
    """P is rounded at another size, as where the exponent is not shifted by the row's maximum."""

    def to_p(self, p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return super().to_p(p * 0.7, dtype) / 0.7


class RowAfterRow(Kernel):
    """dK and dV add one query row after another in fp32, as one thread does."""

    def over_rows(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(*weights.shape[:2], weights.shape[3], x.shape[-1])
        for i in range(x.shape[2]):
            total += weights[:, :, i, :, None] * x[:, :, i, None, :]
        return total

    def group(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(x.shape[0], like.shape[1], x.shape[1] // like.shape[1], *x.shape[2:])
        return sum(heads.unbind(2)).to(like.dtype)


KERNELS: dict[str, Kernel] = {**VARIANTS, "RoundedElsewhere": RoundedElsewhere(), "RowAfterRow": RowAfterRow()}
BACKWARD = "backward"
FLUSHED = Case(2, 3, 1, 64, 192, kv_heads=1, dv=128, causal=True, inputs="std6", seed=51, direction=BACKWARD)
ONE_QUERY = Case(1, 1, 1, 239, 256, dtype="fp32", scale=0.3, inputs="std3", seed=70, direction=BACKWARD)
COPIES = Case(
    2,
    8,
    257,
    257,
    64,
    kv_heads=2,
    causal=True,
    scale=0.3,
    window=(127, 0),
    inputs="one_hot",
    seed=74,
    direction=BACKWARD,
)
FEW_ROWS = Case(1, 2, 2048, 1, 16, kv_heads=1, dtype="fp32", inputs="one_hot", seed=1, direction=BACKWARD)
LONG_SUM = Case(1, 2, 2048, 1, 16, kv_heads=1, dtype="fp32", seed=1, direction=BACKWARD)


@pytest.mark.parametrize(
    ("variant", "case", "gradient_order"),
    [
        pytest.param("FlushedExp", FLUSHED, "transposed", id="P below 2^-126 is 0, times a large dP - delta"),
        pytest.param("FlushedExp", ONE_QUERY, "expanded", id="the same in fp32"),
        pytest.param("RoundedElsewhere", COPIES, "expanded", id="equal rows round alike, so their errors add up"),
        pytest.param("RowAfterRow", LONG_SUM, "expanded", id="a sum of equal terms drifts one way"),
        pytest.param("RowAfterRow", FEW_ROWS, "expanded", id="one of a few rows and their copies too"),
    ],
)
def test_a_kernel_that_rounds_as_hardware_does_passes(variant: str, case: Case, gradient_order: GradientOrder) -> None:
    trial = Trial(case, ("rho",), "mixed", gradient_order)
    (result,) = Examiner(Subject(bare(KERNELS[variant], variant), CPU)).run(trial)
    assert result.ending == "passed", result.message
    assert result.parity is not None


def test_copies_of_a_row_are_counted_head_by_head() -> None:
    x = torch.tensor(
        [[[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [0.0, 5.0]], [[1.0, 2.0], [0.0, 5.0], [-0.0, 5.0], [9.0, 9.0]]]
    )
    found = repeats(x)
    assert found is not None
    assert found[..., 0].tolist() == [[2, 1, 2, 1], [1, 2, 2, 1]]
    assert found.dtype is torch.float64


def test_rows_are_copies_only_if_all_their_parts_are() -> None:
    q, dO = torch.tensor([[[1.0], [1.0], [1.0]]]), torch.tensor([[[2.0, 0.0], [2.0, 1.0], [2.0, 0.0]]])
    found = repeats(q, dO)
    assert found is not None
    assert found[0, :, 0].tolist() == [2, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_random_rows_have_no_copies_and_cost_nothing_more(dtype: torch.dtype) -> None:
    x = torch.randn(3, 300, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert repeats(x) is None
    assert repeats(x[:, :0]) is None
    assert repeats(x[:0]) is None
