"""The flag wrong_memory: O(N) claims held against the rows of one run."""

from __future__ import annotations

import pytest

from fabench.case import Case
from fabench.memory_growth import MemoryGrowth

MIB = 1 << 20


def case(N: int, batch: int = 1, heads: int = 16) -> Case:
    return Case(batch, heads, N, N, 64)


@pytest.mark.parametrize("order", [(1024, 2048), (2048, 1024)], ids=["upwards", "downwards"])
def test_memory_that_grows_fourfold_when_N_doubles_is_wrong(order: tuple[int, int]) -> None:
    growth = MemoryGrowth()
    size = {1024: 16 * MIB, 2048: 64 * MIB}

    assert [growth.is_wrong(case(N), "x", size[N]) for N in order] == [False, True]


def test_memory_that_doubles_with_N_is_right() -> None:
    growth = MemoryGrowth()

    assert not any(growth.is_wrong(case(N), "x", N * 16384) for N in (512, 1024, 2048, 4096))


def test_only_cases_of_the_same_batch_times_heads_and_backend_are_compared() -> None:
    growth = MemoryGrowth()
    growth.is_wrong(case(1024), "x", 16 * MIB)

    assert not growth.is_wrong(case(2048, batch=2), "x", 64 * MIB)
    assert not growth.is_wrong(case(2048), "y", 64 * MIB)
    assert growth.is_wrong(case(2048, batch=2, heads=8), "x", 64 * MIB)


def test_small_sizes_and_unknown_sizes_are_not_judged() -> None:
    growth = MemoryGrowth()
    growth.is_wrong(case(64), "x", 1024)

    assert not growth.is_wrong(case(128), "x", 4096)
    assert not growth.is_wrong(case(256), "x", None)
