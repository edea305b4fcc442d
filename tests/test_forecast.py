"""The predicted time of a row follows the roofline and the rules of measurement; it is rough, but never absurd."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_strategies import cases
from fabench import forecast
from fabench.case import Case
from fabench.device import Device
from fake_probe import CPU, H200

TRAINING = Case(batch=4, heads=16, Nq=4096, Nk=4096, d=128)


@pytest.mark.parametrize(
    ("case", "model", "measured_tflops"),
    [
        (TRAINING, "flash", 352),  # FlashAttention-2 through SDPA
        (TRAINING, "flash", 672),  # cuDNN
        (dataclasses.replace(TRAINING, causal=True), "flash", 306),
        (dataclasses.replace(TRAINING, direction="backward"), "flash", 287),
        (TRAINING, "standard", 98),  # naive PyTorch, which does the whole matrices for a causal mask too
        (dataclasses.replace(TRAINING, causal=True), "standard", 27),
    ],
)
def test_a_call_is_predicted_within_a_factor_of_2_of_what_an_h200_took(case, model, measured_tflops):
    pairs = 4 * case.Nq * case.Nk * case.d * case.batch * case.heads * (0.5 if case.causal else 1)
    measured = pairs * (2.5 if case.has_backward else 1) / (measured_tflops * 1e12)
    assert 0.5 < forecast.call_seconds(case, model, H200) / measured < 2


def test_a_longer_case_takes_longer_and_standard_at_least_as_long_as_flash():
    longer = dataclasses.replace(TRAINING, Nq=8192, Nk=8192)
    for model in ("flash", "standard"):
        assert forecast.call_seconds(longer, model, H200) > 3 * forecast.call_seconds(TRAINING, model, H200)
    assert forecast.call_seconds(TRAINING, "standard", H200) > forecast.call_seconds(TRAINING, "flash", H200)


def test_more_threads_make_a_cpu_faster():
    assert forecast.call_seconds(TRAINING, "flash", CPU, 4) < forecast.call_seconds(TRAINING, "flash", CPU, 1) / 3


def test_a_gpu_that_nobody_knows_still_gets_a_prediction():
    assert 0 < forecast.call_seconds(TRAINING, "flash", Device("cuda", "Mystery 9000")) < 1


def test_idle_time_at_a_duty_of_a_fifth_is_most_of_a_burst_row():
    row = forecast.row_seconds(TRAINING, 1e-3, H200, "burst", 0.5)
    samples, windows = 3 * 5 + 30, 3 + 6
    work, spins = samples * 1.04e-3 + windows * 1e-3, samples * 0.6e-3
    assert row == pytest.approx(forecast.OVERHEAD_S["cuda"] + 6 * 1e-3 + 5 * work + spins)


def test_a_call_longer_than_a_window_is_sampled_five_times_with_as_much_idle_time():
    row = forecast.row_seconds(TRAINING, 0.2, H200, "burst", 0.5)
    assert row == pytest.approx(forecast.OVERHEAD_S["cuda"] + 6 * 0.2 + (3 + 5) * (0.2 + 0.2))
    row = forecast.row_seconds(TRAINING, 0.02, H200, "burst", 0.5)
    assert row == pytest.approx(forecast.OVERHEAD_S["cuda"] + 6 * 0.02 + (3 + 5) * (0.02 + 0.04))


def test_sustained_settles_for_three_seconds_first():
    assert forecast.row_seconds(TRAINING, 1e-3, H200, "sustained", 0.5) == pytest.approx(0.5 + 6e-3 + 3 + 0.5)


def test_a_cpu_row_spends_about_the_suites_seconds():
    row = forecast.row_seconds(TRAINING, 1e-3, CPU, "burst", 0.1)
    assert 0.15 + 0.1 < row < 0.5


@given(cases(), st.sampled_from(["flash", "standard"]), st.sampled_from([CPU, H200]), st.floats(0.01, 1))
def test_every_case_has_a_finite_prediction(case, model, device, seconds):
    call_s = forecast.call_seconds(case, model, device)
    assert 0 < call_s < 1
    assert 0 < forecast.row_seconds(case, call_s, device, "burst", seconds) < 60
