"""What a calibration leaves: the worst of each backend, what was left out, and why. No torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fabench.device import Device
from fabench.errors import UsageError
from fabench.input_files import read_small
from fabench.output_files import write_text
from fabench.parity.calibrate_grid import never
from fabench.parity.calibration import NAME, SCHEMA
from fabench.parity.calibrator import Calibrator, Reading
from fabench.text import counted

TENSORS = ("O", "dQ", "dK", "dV")
"""Whose numbers a calibration holds and shows."""


def default_path(device: Device) -> Path:
    """results/<device>/calibration-parity.json."""
    return Path("results") / device.slug / NAME


def earlier(path: Path, device: Device) -> dict[str, Any]:
    """The calibration that is there, which what is measured now is added to. Raises UsageError."""
    if not path.is_file():
        return {}
    try:
        data: dict[str, Any] = json.loads(read_small(path))
        sound = data["schema"] == SCHEMA and all(isinstance(entry["backend"], str) for entry in data["entries"])
        found = data.get("device", device.name)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise UsageError(
            f"'{path}' must be a parity calibration to be added to, got another file; choose another --out"
        )
    if found != device.name:
        raise UsageError(f"'{path}' must be a calibration of {device.name}, got one of {found}; choose another --out")
    return data


def entries(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """The worst of each backend, dtype, N and tensor, and where it was."""
    worst: dict[tuple[str, str, int, str], dict[str, Any]] = {}
    for reading in readings:
        if reading.parity is None:
            continue
        for tensor in TENSORS:
            numbers = reading.parity.get(tensor)
            if numbers is None or numbers["max_rho"] is None:
                continue
            key = (reading.backend, reading.case.dtype, reading.case.Nq, tensor)
            entry = worst.setdefault(
                key,
                {
                    "backend": reading.backend,
                    "class": reading.parity["class"],
                    "dtype": reading.case.dtype,
                    "N": reading.case.Nq,
                    "tensor": tensor,
                    "direction": "forward" if tensor == "O" else "backward",
                    "cases": 0,
                    "max_rho": 0.0,
                    "rms_rho": 0.0,
                    "max_el": 0.0,
                    "worst_case": "",
                },
            )
            entry["cases"] += 1
            if numbers["max_rho"] > entry["max_rho"]:
                entry["max_rho"], entry["worst_case"] = round(numbers["max_rho"], 4), reading.case.label()
            entry["rms_rho"] = max(entry["rms_rho"], round(numbers["rms_rho"], 4))
            entry["max_el"] = max(entry["max_el"], round(numbers["max_el"], 3))
    return [worst[key] for key in sorted(worst)]


def left_out(calibrator: Calibrator) -> list[dict[str, Any]]:
    """Which cases of the grid were not tried on which backends, and why; alike backends together."""
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for backend in calibrator.backends:
        tried = {reading.case for reading in calibrator.readings if reading.backend == backend}
        missing = len(calibrator.cases) - len(tried)
        why = calibrator.lost.get(backend, calibrator.stopped)
        if missing:
            words = never(calibrator.cases, [case for case in calibrator.cases if case in tried])
            group = {"backends": [], "cases": missing, "of": len(calibrator.cases), "why": why, "never": words}
            groups.setdefault((why, missing), group)["backends"].append(backend)
    return list(groups.values())


def left_out_lines(groups: Sequence[dict[str, Any]], backends: Sequence[str]) -> list[str]:
    """What was left out as sentences; `backends` are all that the file holds numbers of."""
    lines = []
    for group in groups:
        whose = "every backend" if set(backends) <= set(group["backends"]) else ", ".join(group["backends"])
        some = group["never"] if group["cases"] < group["of"] else []
        never = f"; never measured: {', '.join(some)}" if some else ""
        lines.append(f"left out: {group['cases']} of {counted(group['of'], 'case')} of {whose}: {group['why']}{never}")
    return lines


def earlier_lines(kept: dict[str, dict[str, str]]) -> list[str]:
    """Which backends' numbers an earlier run has measured, as sentences; those of one run together."""
    runs: dict[tuple[str, str], list[str]] = {}
    for backend, run in kept.items():
        runs.setdefault((run["made"][:10], run["torch"]), []).append(backend)
    return [f"of an earlier run, {day}, torch {torch}: {', '.join(names)}" for (day, torch), names in runs.items()]


def fewer(calibrator: Calibrator, known: dict[str, Any]) -> list[str]:
    """The backends of which the file held more cases than take their place now, as sentences."""
    before, now = cases_by_backend(known.get("entries", ())), cases_by_backend(entries(calibrator.readings))
    return [
        f"replaced: {counted(before[name], 'case')} of {name} by {cases}"
        for name, cases in now.items()
        if before.get(name, 0) > cases
    ]


def cases_by_backend(found: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many cases each backend has an output of."""
    cases: dict[str, int] = {}
    for entry in found:
        if entry["tensor"] == "O":
            cases[entry["backend"]] = cases.get(entry["backend"], 0) + entry.get("cases", 0)
    return cases


def write(calibrator: Calibrator, path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Write the readings, and return what was written. Raises UsageError.

    They take the place of all that is `known` of the backends measured; what is known of others stays as it is, with
    its failures, what it left out, and when it was made.
    """
    device = calibrator.probe.device
    measured = {reading.backend for reading in calibrator.readings}
    kept = [entry for entry in known.get("entries", ()) if entry["backend"] not in measured]
    run = {"made": known.get("made", ""), "torch": known.get("software", {}).get("torch", "")}
    failures = [
        {"backend": r.backend, "case": r.case.label(), "reason": r.reason}
        for r in calibrator.readings
        if not r.passed and r.parity is not None
    ]
    others = [
        group | {"backends": names}
        for group in known.get("left_out", ())
        if (names := [name for name in group["backends"] if name not in calibrator.backends])
    ]
    data = {
        "schema": SCHEMA,
        "device": device.name,
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "software": calibrator.probe.software.model_dump(mode="json"),
        "earlier": {name: known.get("earlier", {}).get(name, run) for name in cases_by_backend(kept)},
        "entries": sorted(
            [*kept, *entries(calibrator.readings)], key=lambda e: (e["backend"], e["dtype"], e["N"], e["tensor"])
        ),
        "failures": [*(f for f in known.get("failures", ()) if f["backend"] not in measured), *failures],
        "left_out": [*others, *left_out(calibrator)],
    }
    write_text(path, json.dumps(data, indent=1) + "\n")
    return data
