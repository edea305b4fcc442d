"""The worked example of the theory, on the one implementation of the merge."""

from __future__ import annotations

import math

import pytest
import torch

from fabench.reference import State, merge


def test_scores_3_1_then_5_2_give_maximum_5_and_sum_1_2034():
    first, second = (State.of(torch.tensor(s, dtype=torch.float64)) for s in ([3.0, 1.0], [5.0, 2.0]))
    both = merge(first, second)
    assert (both.m.item(), both.l.item()) == (5, pytest.approx(1.2034, abs=5e-5))
    assert both.lse.item() == pytest.approx(math.log(sum(map(math.exp, (3, 1, 5, 2)))))
