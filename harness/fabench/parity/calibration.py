"""Measured accuracy of the real backends on a device: results/<device>/calibration-parity.json. No torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabench.device import Device

if TYPE_CHECKING:
    from fabench.parity.verdict import Accuracy

NAME = "calibration-parity.json"
SCHEMA = "fabench/calibration-parity/1"
DRIFT_FACTOR, DRIFT_SLACK = 1.5, 0.5
"""A backend drifts when its max rho exceeds this times the calibrated one plus the slack."""


def paths(device: Device) -> list[Path]:
    """Where a calibration of `device` may lie: the current folder's results, the package's data, the checkout."""
    package = Path(__file__).resolve().parents[1]
    return [
        Path("results") / device.slug / NAME,
        package / "data" / device.slug / NAME,
        package.parents[1] / "results" / device.slug / NAME,
    ]


def load(device: Device) -> dict[str, Any] | None:
    """The calibration of `device`, None if there is none that can be read."""
    for path in paths(device):
        try:
            data: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and data.get("schema") == SCHEMA:
            return data
    return None


def drift(backend: str, device: Device, accuracy: Sequence[Accuracy]) -> list[str]:
    """Sentences about tensors whose max rho is well above what was calibrated for this backend."""
    calibration = load(device)
    if calibration is None:
        return []
    found = []
    for row in accuracy:
        known = [
            entry["max_rho"]
            for entry in calibration["entries"]
            if entry["backend"] == backend and entry["dtype"] == row.dtype and entry["tensor"] == row.tensor
        ]
        if known and row.max_rho > DRIFT_FACTOR * max(known) + DRIFT_SLACK:
            found.append(
                f"{backend} has drifted: max rho of {row.tensor} in {row.dtype} is {row.max_rho:.2f}, "
                f"calibrated at {max(known):.2f}"
            )
    return found
