"""The roofs over a set of outcomes: the datasheet's, and what the run's own GEMM and copy reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fabench.views.outcomes import Outcome
from fabench.views.values import VALUES


def measured_gemm(outcomes: Sequence[Outcome]) -> float | None:
    """FLOP/s of the measured GEMM of these outcomes' dtype; None unless they share one. Follows from `utilization`."""
    if len({outcome.case.dtype for outcome in outcomes}) != 1:
        return None
    return _median([_over(outcome, "tflops", "gemm") for outcome in outcomes])


def measured_copy(outcomes: Sequence[Outcome]) -> float | None:
    """Bytes/s of the measured copy."""
    return _median([_over(outcome, "gbs", "hbm") for outcome in outcomes])


def datasheet(outcomes: Sequence[Outcome]) -> tuple[float | None, float | None]:
    """(FLOP/s of the outcomes' dtype, bytes/s) of the device's peaks; None where unknown or not one for all."""
    ours = [outcome for outcome in outcomes if outcome.ours]
    flops = {outcome.env.peaks.flops.get(outcome.case.dtype) for outcome in ours}
    bandwidth = {outcome.env.peaks.bandwidth for outcome in ours}
    return flops.pop() if len(flops) == 1 else None, bandwidth.pop() if len(bandwidth) == 1 else None


def _over(outcome: Outcome, rate: str, share: str) -> float | None:
    reached, part = VALUES[rate].of(outcome), VALUES[share].of(outcome)
    return reached / part if reached and part else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
