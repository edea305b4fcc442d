"""Which regime a case is measured in: settled before timing, from the case and the device alone. No torch here."""

from __future__ import annotations

from fabench.case import Case
from fabench.cost import cost
from fabench.device import Device
from fabench.errors import DeviceError
from fabench.measure.peaks import peaks
from fabench.names import Regime
from fabench.roofline import seconds

GRAPH_BELOW_S = 60e-6
"""A case that the roofline bounds below this is replayed from a CUDA graph: launching it would be most of its time."""


def bound_seconds(case: Case, device: Device) -> float | None:
    """The least time the roofline allows `case` on `device`: datasheet peaks, else computed ones; None if unknown."""
    known = peaks(device)
    peak_flops = known.flops.get(case.dtype)
    if peak_flops is None:
        return None
    needs = cost(case)
    return seconds(needs.flops, needs.ideal_bytes, peak_flops, known.bandwidth)


def choose(case: Case, device: Device, requested: Regime) -> Regime:
    """The regime of `case`, alike for all backends and files: never from a measured time.

    On a CPU it is `cpu`; on a GPU, `graph` if the roofline bounds the case below 60 us, else what the run asks for.
    Raises DeviceError if the run asks for `cpu` on a GPU.
    """
    if device.type == "cpu":
        return "cpu"
    if requested == "cpu":
        raise DeviceError(f"'regime' must be burst, sustained or graph on {device.name}, got 'cpu'; use --device cpu")
    bound = bound_seconds(case, device)
    return "graph" if bound is not None and bound < GRAPH_BELOW_S else requested
