"""The order in which grids run over heads: as many side by side as L2 holds the streamed tensors of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabench.launch_order import MOST_ROUNDS, side_by_side

MIB = 1 << 20


@pytest.mark.parametrize(
    ("heads", "group", "streamed_bytes", "wide"),
    [
        (64, 1, 2 * MIB, 13),
        (64, 8, 2 * MIB, 64),
        (64, 8, 16 * MIB, 8),
        (16, 1, 32 * MIB, 1),
        (16, 4, 64 * MIB, 4),
        (3, 1, 0, 3),
    ],
)
def test_half_of_l2_is_filled_by_heads_in_rounds_of_about_one_width(
    heads: int, group: int, streamed_bytes: int, wide: int
) -> None:
    assert side_by_side(heads, group, streamed_bytes, 60 * MIB) == wide


@given(st.integers(1, 1 << 20), st.integers(1, 16), st.integers(0, 1 << 34), st.integers(0, 1 << 28))
def test_groups_stay_whole_and_no_grid_has_too_many_rounds(
    kv_heads: int, group: int, streamed_bytes: int, l2_bytes: int
) -> None:
    heads = kv_heads * group
    wide = side_by_side(heads, group, streamed_bytes, l2_bytes)

    assert group <= wide <= heads
    assert wide % group == 0
    assert -(-heads // wide) <= MOST_ROUNDS
