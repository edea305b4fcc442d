"""Memory orders keep the values and change only where they lie."""

from __future__ import annotations

import pytest
import torch

from fabench import inputs
from fabench.case import Case
from fabench.parity.orders import arrange

CASE = Case(1, 2, 5, 7, 8, direction="backward")


@pytest.mark.parametrize("order", ["plain", "sliced", "offset1", "offset8", "odd_strides"])
def test_values_stay(order: str) -> None:
    t = inputs.make(CASE, "cpu")
    arranged = arrange(t, order)  # type: ignore[arg-type]
    for (name, x), (_, y) in zip(t.items(), arranged.items(), strict=True):
        assert torch.equal(x, y), name


def test_each_order_is_what_it_says() -> None:
    t = inputs.make(CASE, "cpu")
    assert arrange(t, "sliced").k.stride(1) == (7 + 128) * 8
    assert arrange(t, "offset1").q.storage_offset() == 1
    assert arrange(t, "odd_strides").q.stride(0) == 12345
    expanded = arrange(t, "expanded_kv")
    assert expanded.k.stride(1) == 0
    assert torch.equal(expanded.v[:, 1], t.v[:, 0])


def test_far_rows_lie_past_32_bit_offsets() -> None:
    t = inputs.make(Case(1, 1, 3, 3, 8), "cpu")
    meta = inputs.Tensors(*(x.to("meta") for _, x in t.items()))
    far = arrange(meta, "far_rows")
    assert far.q.stride(2) * 2 > 2**31


def test_gradients_have_orders_of_their_own() -> None:
    t = inputs.make(CASE, "cpu")
    transposed, expanded = arrange(t, "plain", "transposed").dO, arrange(t, "plain", "expanded").dO
    assert transposed is not None
    assert expanded is not None
    assert torch.equal(transposed, t.dO)  # type: ignore[arg-type]
    assert not transposed.is_contiguous()
    assert expanded.stride() == (8 * 5 * 2, 0, 0, 0)


@pytest.mark.parametrize("order", ["offset1", "expanded_kv", "sliced"])
def test_copies_for_the_kernel_lie_the_same_way(order: str) -> None:
    t = arrange(inputs.make(CASE, "cpu"), order)  # type: ignore[arg-type]
    for (name, x), (_, y) in zip(t.items(), inputs.rotate(t, 0).items(), strict=True):
        assert torch.equal(x, y), name
        assert (x.stride(), x.storage_offset()) == (y.stride(), y.storage_offset()), name
