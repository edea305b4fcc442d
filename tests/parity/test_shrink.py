"""Shrinking finds the smallest case that still fails, whatever it depends on."""

from __future__ import annotations

from fabench.case import Case
from fabench.parity.shrink import shrink
from fabench.parity.trial import Trial

BIG = Trial(
    Case(
        3,
        8,
        257,
        320,
        128,
        kv_heads=2,
        dtype="bf16",
        causal=True,
        alignment="top_left",
        window=(64, 0),
        softcap=5.0,
        scale=0.3,
        layout="bshd",
        inputs="outliers",
        direction="backward",
        seed=9,
    ),
    ("rho", "mask"),
    "sliced",
    "transposed",
)


def test_what_always_fails_shrinks_to_almost_nothing() -> None:
    smallest = shrink(BIG, "rho", lambda t: True, most_tests=500)
    assert smallest.probes == ("rho",)
    assert (smallest.order, smallest.gradient_order) == ("plain", "plain")
    case = smallest.case
    assert case == Case(1, 1, 1, 1, 8, dtype="fp32")


def test_what_matters_stays() -> None:
    def fails(t: Trial) -> bool:
        c = t.case
        return c.Nk > 128 and c.causal and c.heads != c.kv_heads and c.dtype == "bf16" and t.order == "sliced"

    smallest = shrink(BIG, "rho", fails, most_tests=500)
    c = smallest.case
    assert fails(smallest)
    assert (c.Nq, c.Nk, c.d, c.batch, c.heads, c.kv_heads) == (129, 129, 8, 1, 2, 1)
    assert c.window is None
    assert c.inputs == "normal"
    assert c.direction == "forward"


def test_a_failure_that_needs_everything_is_given_back() -> None:
    smallest = shrink(BIG, "mask", lambda t: False)
    assert smallest.case == BIG.case
    assert smallest.probes == ("mask",)


def test_it_stops_at_its_limits() -> None:
    asked: list[Trial] = []

    def fails(t: Trial) -> bool:
        asked.append(t)
        return True

    shrink(BIG, "rho", fails, most_tests=5)
    assert len(asked) <= 5
    now = iter(range(100))
    asked.clear()
    shrink(BIG, "rho", fails, seconds=3, clock=lambda: float(next(now)))
    assert len(asked) <= 4


def test_what_fails_for_the_trial_before_it_is_not_taken_for_smaller() -> None:
    """A kernel that keeps its softcap is wrong in the next call too, without one."""
    before = [5.0]

    def fails(t: Trial) -> bool:
        kept = before[0]
        before[0] = t.case.softcap
        return bool(kept or t.case.softcap)

    smallest = shrink(BIG, "rho", fails, most_tests=500)
    assert smallest.case.softcap == 5.0
    assert (smallest.case.Nq, smallest.case.Nk, smallest.case.d) == (1, 1, 8)


def test_size_goes_first_for_a_large_case_leaves_no_time_for_what_is_plain() -> None:
    """A clock that is as slow as the case is large."""
    now = [0.0]

    def fails(t: Trial) -> bool:
        now[0] += t.case.batch * t.case.Nq * t.case.Nk / 256**2
        return True

    smallest = shrink(BIG, "rho", fails, most_tests=500, seconds=20, clock=lambda: now[0])
    assert smallest.case == Case(1, 1, 1, 1, 8, dtype="fp32")
