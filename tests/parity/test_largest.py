"""Where a tensor is largest."""

from __future__ import annotations

import pytest
import torch

from fabench.parity.largest import where_largest


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 1, 5, 3)])
def test_each_element_is_found_when_it_is_the_largest(shape: tuple[int, ...]) -> None:
    for number in range(torch.Size(shape).numel()):
        x = torch.zeros(shape)
        x.view(-1)[number] = 1.0
        assert x[where_largest(x)] == 1.0
        assert where_largest(x) == tuple(x.nonzero()[0].tolist())


def test_of_equal_elements_the_first_is_named_also_where_memory_has_another_order() -> None:
    assert where_largest(torch.tensor([[0, 1], [1, 1]], dtype=torch.uint8)) == (0, 1)
    assert where_largest(torch.tensor([[0, 1], [1, 1]]).mT) == (0, 1)
    assert where_largest(torch.tensor([[0, 0], [5, 0]]).mT) == (0, 1)
