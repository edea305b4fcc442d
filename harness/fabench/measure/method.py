"""The method of a measurement as a record, and the hash by which files are said to be comparable. No torch here."""

from __future__ import annotations

from fabench.case import digest
from fabench.device import Device
from fabench.measure.rules import VERSION
from fabench.names import Regime
from fabench.records import Method


def method_for(regime: Regime, device: Device, case_inputs: str) -> Method:
    """The rules that a measurement in `regime` follows, with inputs distributed as `case_inputs`.

    Sustained timing flushes nothing, but rotates over more than three times the L2 cache: its inputs are cold too.
    """
    if device.type == "cpu":
        regime = "cpu"
    return Method(
        regime=regime,
        cache="warm" if regime == "cpu" else "cold",
        timer="perf_counter" if regime == "cpu" else "cuda_event",
        inputs=f"{case_inputs}, rotated",
        rules=VERSION,
    )


def method_id(method: Method) -> str:
    """Twelve hex digits that name the rules; times under different ones are never compared."""
    return digest(method.model_dump(mode="json"))
