"""The stopping rule: its checkpoints, and which of its reasons comes first."""

from __future__ import annotations

import pytest

from fabench.measure.stopping import Limits, checkpoints, next_checkpoint, relative_half_width, stop

NARROW = [100.0] * 480
WIDE = [100.0, 200.0] * 240


def decide(samples: list[float], sampled_s: float = 0.1, wall_s: float = 1.0, **keywords: object) -> str | None:
    return stop(samples, sampled_s, wall_s, Limits(), **{"long_call": False, **keywords})  # type: ignore[arg-type]


def test_the_wall_comes_before_everything_even_too_few_samples() -> None:
    assert decide(NARROW[:3], wall_s=20.0) == "wall"
    assert decide(NARROW[:30], sampled_s=9.0, wall_s=20.0) == "wall"


def test_too_few_samples_come_before_a_narrow_interval_and_before_the_sampled_time() -> None:
    assert decide(NARROW[:29], sampled_s=9.0) is None
    assert decide(NARROW[:30], sampled_s=9.0) == "ci"


def test_a_narrow_interval_comes_before_the_sampled_time() -> None:
    assert decide(NARROW[:60], sampled_s=0.5) == "ci"
    assert decide(WIDE[:60], sampled_s=0.5) == "seconds"


def test_it_goes_on_where_neither_holds_until_the_last_checkpoint() -> None:
    for n in (30, 60, 120, 240):
        assert decide(WIDE[:n], sampled_s=0.49) is None
    assert decide(WIDE, sampled_s=0.49) == "n_max"


@pytest.mark.parametrize("n", [31, 59, 61, 100, 239, 479])
def test_between_checkpoints_only_the_wall_can_stop_it(n: int) -> None:
    assert decide(NARROW[:n], sampled_s=9.0) is None
    assert decide(NARROW[:n], wall_s=21.0) == "wall"


def test_a_call_with_a_fixed_number_of_samples_stops_there_whatever_its_interval() -> None:
    assert decide(WIDE[:4], long_call=True, only=5) is None
    assert decide(WIDE[:5], long_call=True, only=5) == "n_min"


def test_five_samples_have_no_interval_but_can_have_taken_long_enough() -> None:
    assert decide(NARROW[:5], sampled_s=0.2, long_call=True) is None
    assert decide(NARROW[:5], sampled_s=0.5, long_call=True) == "seconds"
    assert decide(NARROW[:10], sampled_s=0.2, long_call=True) == "ci"


def test_checkpoints_double_from_30_and_start_at_5_for_long_calls() -> None:
    assert checkpoints(long_call=False) == (30, 60, 120, 240, 480)
    assert checkpoints(long_call=True)[0] == 5
    assert [next_checkpoint(n, long_call=False) for n in (0, 29, 30, 479, 480)] == [30, 30, 60, 480, 480]


def test_the_half_width_is_a_share_of_the_median() -> None:
    assert relative_half_width([99.0] * 15 + [101.0] * 15) == pytest.approx(1 / 101, rel=1e-3)
    assert relative_half_width([0.0] * 30) == float("inf")
