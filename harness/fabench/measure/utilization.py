"""What share of the device a call used, and whether its time can be true. No torch here."""

from __future__ import annotations

from fabench.cost import Cost
from fabench.records import Peaks, Utilization


def utilization(
    cost: Cost,
    seconds: float,
    dtype: str,
    peaks: Peaks,
    gemm_flops: float | None = None,
    copy_bandwidth: float | None = None,
) -> Utilization:
    """Shares of the peaks that one call of `seconds` reached; null where a peak is not known.

    `mfu` is FLOP/s over the stated peak of `dtype` ('tf32' for fp32 inputs that tf32 units multiply); `gemm` is FLOP/s
    over the measured GEMM; `hbm` is ideal bytes/s over the measured copy; `roofline` is the least time that those two
    measured figures allow over the time taken.
    """
    roofline = None
    if gemm_flops and copy_bandwidth and seconds > 0:
        roofline = max(cost.flops / gemm_flops, cost.ideal_bytes / copy_bandwidth) / seconds
    return Utilization(
        mfu=_share(cost.flops, peaks.flops.get(dtype), seconds),
        gemm=_share(cost.flops, gemm_flops, seconds),
        hbm=_share(cost.ideal_bytes, copy_bandwidth, seconds),
        roofline=roofline,
    )


def _share(amount: int, rate: float | None, seconds: float) -> float | None:
    return amount / seconds / rate if rate and seconds > 0 else None


def implausible(
    cost: Cost, seconds: float, dtype: str, limits: Peaks, *, cold: bool, least_s: float | None = None
) -> str | None:
    """Why a call of `cost` cannot have taken `seconds`, or None if it can. `limits` are those of `peaks.limits`.

    `least_s`, the shortest sample, must have taken some time too.

    More FLOP/s than the dtype's matrix units have at the highest clock (for fp32 the tf32 units count: a kernel may
    build its products of theirs), or, where inputs were `cold`, more ideal bytes/s than the memory has.
    """
    if (least := seconds if least_s is None else min(seconds, least_s)) <= 0:
        return f"a time of {least:g} s"
    names = (dtype, "tf32") if dtype == "fp32" else (dtype,)
    most = max((limits.flops[name] for name in names if name in limits.flops), default=None)
    rate, moved = cost.flops / seconds, cost.ideal_bytes / seconds
    if most is not None and rate > most:
        return f"{rate / 1e12:.4g} TFLOP/s > {most / 1e12:.4g}, the device's peak ({limits.source})"
    if cold and limits.bandwidth is not None and moved > limits.bandwidth:
        return f"{moved / 1e12:.3g} TB/s > {limits.bandwidth / 1e12:.3g}, the memory's peak ({limits.source})"
    return None
