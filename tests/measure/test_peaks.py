"""Peaks by name and by computation, utilization against them, and times that cannot be true."""

from __future__ import annotations

import pytest

from fabench.cost import Cost
from fabench.device import Device
from fabench.measure.peaks import DATASHEETS, computed, limits, peaks
from fabench.measure.utilization import implausible, utilization

H200 = Device("cuda", "NVIDIA H200", capability=(9, 0), sms=132, max_sm_clock_hz=1.98e9)


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth"),
    [
        ("NVIDIA A100-SXM4-40GB", 312e12, 1.555e12),
        ("NVIDIA A100-PCIE-40GB", 312e12, 1.555e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 2.039e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 1.935e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12, 3.35e12),
        ("NVIDIA H100 PCIe", 756e12, 2.0e12),
        ("NVIDIA H100 NVL", 835.5e12, 3.9e12),
        ("NVIDIA H200", 989e12, 4.8e12),
        ("NVIDIA H200 NVL", 835.5e12, 4.8e12),
        ("NVIDIA B200", 2250e12, 8.0e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 1.008e12),
        ("NVIDIA L40S", 362.05e12, 0.864e12),
        ("AMD Instinct MI300X", 1307.4e12, 5.3e12),
    ],
)
def test_a_card_in_the_table_gets_its_own_dense_figures(name: str, bf16: float, bandwidth: float) -> None:
    found = peaks(Device("cuda", name))

    assert found.flops["bf16"] == found.flops["fp16"] == bf16
    assert found.bandwidth == bandwidth
    assert "datasheet" in found.source or "data sheet" in found.source or "whitepaper" in found.source


def test_every_entry_of_the_table_names_its_source_and_orders_its_rates() -> None:
    for sheet in DATASHEETS:
        assert sheet.source
        assert sheet.bf16 > sheet.tf32 >= sheet.fp32 > 0


def test_a_card_not_in_the_table_gets_a_computed_peak_that_says_so() -> None:
    found = peaks(Device("cuda", "NVIDIA H20X", capability=(9, 0), sms=100, max_sm_clock_hz=2e9))

    assert found.flops["bf16"] == 100 * 2e9 * 4096
    assert found.bandwidth is None
    assert found.source == "computed: 100 SMs x 2 GHz x FLOP/clk/SM of capability 9.0"


def test_the_computed_peak_of_an_h200_is_1070_tflops_at_its_highest_clock_and_989_at_its_boost_clock() -> None:
    at_max = computed(H200)
    at_boost = computed(Device("cuda", "NVIDIA H200", capability=(9, 0), sms=132, max_sm_clock_hz=1.83e9))

    assert at_max is not None
    assert at_boost is not None
    assert at_max.flops["bf16"] == pytest.approx(1070e12, rel=1e-3)
    assert at_boost.flops["bf16"] == pytest.approx(989e12, rel=1e-3)


def test_a_cpu_has_no_peaks_and_names_itself() -> None:
    found = peaks(Device("cpu", "Some CPU"))

    assert found.flops == {}
    assert found.bandwidth is None
    assert "Some CPU" in found.source


def test_limits_take_the_higher_of_datasheet_and_clock() -> None:
    assert limits(H200).flops["bf16"] == pytest.approx(1070e12, rel=1e-3)
    assert limits(H200).bandwidth == 4.8e12
    slow = Device("cuda", "NVIDIA H200", capability=(9, 0), sms=132, max_sm_clock_hz=1e9)
    assert limits(slow).flops["bf16"] == 989e12
    assert limits(Device("cuda", "NVIDIA H200")).flops["bf16"] == 989e12


def test_utilization_is_shares_of_stated_and_measured_peaks() -> None:
    cost = Cost(pairs=1, flops=10**12, ideal_bytes=10**9)
    used = utilization(cost, 2e-3, "bf16", peaks(H200), gemm_flops=800e12, copy_bandwidth=4e12)

    assert used.mfu == pytest.approx(500 / 989)
    assert used.gemm == pytest.approx(500 / 800)
    assert used.hbm == pytest.approx(0.5 / 4)
    assert used.roofline == pytest.approx(1.25e-3 / 2e-3)


def test_a_memory_bound_roofline_is_its_bytes() -> None:
    used = utilization(Cost(1, 10**9, 10**9), 1e-3, "bf16", peaks(H200), gemm_flops=800e12, copy_bandwidth=4e12)

    assert used.roofline == pytest.approx(0.25)


def test_an_unknown_peak_leaves_its_share_null() -> None:
    used = utilization(Cost(1, 10**9, 10**9), 1e-3, "bf16", peaks(Device("cpu", "x")))

    assert (used.mfu, used.gemm, used.hbm, used.roofline) == (None, None, None, None)


def test_more_flops_than_the_highest_clock_gives_are_implausible() -> None:
    allowed = limits(H200)
    cost = Cost(1, 1072 * 10**9, 1)

    message = implausible(cost, 1e-3, "bf16", allowed, cold=True)
    assert message is not None
    assert "1072 TFLOP/s > 1071" in message
    assert implausible(cost, 1.01e-3, "bf16", allowed, cold=True) is None


def test_fp32_may_use_the_tf32_units() -> None:
    allowed = limits(H200)

    assert implausible(Cost(1, 400 * 10**9, 1), 1e-3, "fp32", allowed, cold=True) is None
    assert implausible(Cost(1, 600 * 10**9, 1), 1e-3, "fp32", allowed, cold=True) is not None


def test_more_bytes_than_the_memory_moves_are_implausible_only_if_cold() -> None:
    allowed = limits(H200)
    cost = Cost(1, 10**6, 5 * 10**9)

    message = implausible(cost, 1e-3, "bf16", allowed, cold=True)
    assert message is not None
    assert "5 TB/s > 4.8" in message
    assert implausible(cost, 1e-3, "bf16", allowed, cold=False) is None


def test_a_time_of_zero_is_implausible_and_an_unknown_device_forbids_nothing() -> None:
    nothing = limits(Device("cpu", "x"))

    assert implausible(Cost(1, 1, 1), 0.0, "bf16", nothing, cold=True) == "a time of 0 s"
    assert implausible(Cost(1, 10**18, 10**15), 1e-9, "bf16", nothing, cold=True) is None


def test_a_sample_of_zero_is_implausible_whatever_the_median() -> None:
    nothing = limits(Device("cpu", "x"))

    assert implausible(Cost(1, 1, 1), 1e-3, "bf16", nothing, cold=True, least_s=0.0) == "a time of 0 s"
