"""Runs measurements on the fake engine, as the tests of tests/measure do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fabench.device import Device
from fabench.measure.method import method_for
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fake_engine import FakeEngine, Kernel

GPU = Device("cuda", "fake")
CPU = Device("cpu", "fake")


def run(
    engine: FakeEngine,
    kernels: dict[str, Kernel],
    *,
    regime: Any = "burst",
    rotation: int = 3,
    limits: Limits | None = None,
    device: Device = GPU,
    **keywords: Any,
) -> dict[str, Measurement]:
    candidates = [Candidate(name, engine.launcher(name, kernel), rotation) for name, kernel in kernels.items()]
    windows = keywords.pop("windows", [])
    return measure(
        candidates,
        method_for(regime, device, "normal"),
        limits or Limits(),
        engine,
        lambda name, samples: windows.append((name, samples)),
        **keywords,
    )


def noisy(base: float, share: float) -> Callable[[], float]:
    """A duration that alternates around `base`, so that its interval never becomes narrow."""
    state = [0]

    def next_ns() -> float:
        state[0] += 1
        return base * (1 + share * (state[0] % 2))

    return next_ns
