"""The machine beside the problem: right values of the roofline, tiles and waves."""

from __future__ import annotations

import pytest

from fabench import roofline

KIB = 1024


@pytest.mark.parametrize(("bandwidth", "expected"), [(1.55e12, 201.3), (2.0e12, 156)])
def test_ridge_of_an_a100(bandwidth, expected):
    assert roofline.ridge(312e12, bandwidth) == pytest.approx(expected, abs=0.05)


def test_below_the_ridge_bandwidth_is_the_limit_and_above_it_the_peak():
    peak, bandwidth = 312e12, 1.55e12
    assert roofline.attainable(63, peak, bandwidth) == pytest.approx(63 * bandwidth)
    assert roofline.attainable(1365, peak, bandwidth) == peak
    assert [roofline.bound(i, peak, bandwidth) for i in (63, 201, 202, 1365)] == [
        "memory",
        "memory",
        "compute",
        "compute",
    ]


def test_the_least_time_is_the_longer_of_arithmetic_and_traffic():
    assert roofline.seconds(312e12, 1.55e12, 312e12, 1.55e12) == 1
    assert roofline.seconds(1, 3.1e12, 312e12, 1.55e12) == 2
    assert roofline.seconds(624e12, 1e15, 312e12, None) == 2


def test_elementwise_kernels_are_far_below_any_ridge():
    assert roofline.elementwise_intensity(1, reads=1, writes=1, element_bytes=4) == 0.125  # ReLU in fp32
    assert roofline.elementwise_intensity(3, reads=1, writes=1, element_bytes=2) == 0.75  # softmax in fp16


def test_rows_that_fit_in_the_shared_memory_of_an_a100():
    assert roofline.rows_that_fit(192 * KIB, 128, 2) == 768


def test_read_ratio_takes_the_memory_in_elements():
    assert roofline.read_ratio(64, 192 * KIB, 2) == pytest.approx(0.042, abs=5e-4)
    slip = roofline.read_ratio(64, 192 * KIB, 1)  # M in bytes
    assert slip == pytest.approx(0.021, abs=5e-4)


def test_v1_uses_12_percent_of_the_sms_at_16_heads_and_v2_fills_the_card():
    v1 = roofline.ctas("v1", 16, 4096, 128)
    assert roofline.sm_share(v1, 132) == pytest.approx(0.12, abs=2e-3)
    v2 = roofline.ctas("v2", 16, 4096, 128)
    assert (v2, roofline.sm_share(v2, 132)) == (512, 1)
    assert roofline.waves(v2, 132, ctas_per_sm=2) == pytest.approx(512 / 264)


def test_a_tile_is_feasible_if_its_shared_memory_and_registers_fit():
    tile = roofline.Tile(Br=128, Bc=64, d=128, dv=128, element_bytes=2, stages=2, threads=128)
    assert tile.shared_bytes == (128 * 128 + 2 * 2 * 64 * 128) * 2
    assert tile.accumulator_registers == 128 * (128 + 64) // 128
    assert tile.reasons(shared_limit=163 * KIB) == []
    assert tile.reasons(shared_limit=64 * KIB, register_limit=128) == [
        "shared memory 98304 B > 65536 B",
        "accumulators 192 registers a thread > 128",
    ]


def test_a_score_tile_in_shared_memory_costs_bytes_and_saves_registers():
    tile = roofline.Tile(Br=64, Bc=64, d=64, dv=128, element_bytes=4, scores_in_shared=True)
    assert tile.shared_bytes == (64 * 64 + 64 * (64 + 128) + 64 * 64) * 4
    assert tile.accumulator_registers == 64 * 128 // 128
