"""Measures how exact the real backends are: one reference a case, every backend judged by it. No torch here."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fabench.case import Case
from fabench.device import Device
from fabench.errors import UsageError
from fabench.input_files import read_small
from fabench.names import Inputs
from fabench.output_files import write_text
from fabench.parity.calibration import NAME, SCHEMA
from fabench.parity.target import ParityInterpreter
from fabench.probe import Probe
from fabench.protocol import FIRST_ROW
from fabench.worker_process import WorkerDiedError, WorkerProcess

LENGTHS = {"cuda": (512, 1024, 2048, 4096), "cpu": (128, 512)}
DISTRIBUTIONS: tuple[Inputs, ...] = ("normal", "std3", "std6", "outliers")
TENSORS = {"O": "O", "dQ": "dQ", "dK": "dK", "dV": "dV"}
CASE_LIMIT_S = 300.0
POLL_S = 0.05


@dataclass
class Reading:
    """One backend on one case."""

    backend: str
    case: Case
    parity: dict[str, Any] | None
    passed: bool
    reason: str = ""
    """Why there are no numbers, or what failed."""


@dataclass
class Calibrator:
    """Runs the grid over backends in a worker; a backend that kills it is left out from then on."""

    probe: Probe
    backends: list[str]
    readings: list[Reading] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    """Backend -> why it was left out."""
    worker: WorkerProcess | None = None

    def run(self, cases: Sequence[Case], on_case: Callable[[Case], None], budget_s: float | None = None) -> int:
        """Measure; returns how many cases the budget left out."""
        began = time.monotonic()
        try:
            for i, case in enumerate(cases):
                if budget_s is not None and time.monotonic() - began > budget_s:
                    return len(cases) - i
                on_case(case)
                self._case(case)
        finally:
            self._end()
        return 0

    def _case(self, case: Case) -> None:
        """One case for all backends still in, again without a backend that ended the worker."""
        while True:
            able = [b for b in self.backends if b not in self.lost and not self._known(b, case)]
            if not able:
                return
            try:
                self._measure(case, able)
            except WorkerDiedError as death:
                row = self.worker.board.row - FIRST_ROW if self.worker is not None else 0
                self._end()
                guilty = able[row] if 0 <= row < len(able) else able[0]
                self.lost[guilty] = f"{death} on {case.label()}"

    def _known(self, backend: str, case: Case) -> bool:
        return any(r.backend == backend and r.case == case for r in self.readings)

    def _measure(self, case: Case, able: list[str]) -> None:
        worker = self._ready(able[0])
        worker.send({"cmd": "calibrate", "key": case.key, "backends": able})
        deadline = time.monotonic() + CASE_LIMIT_S
        while True:
            event = worker.next_event(POLL_S)
            if event is None and time.monotonic() > deadline:
                raise WorkerDiedError("timeout", f"no answer within {CASE_LIMIT_S:.0f} s")
            if event is None:
                continue
            if event["ev"] == "reading":
                self.readings.append(Reading(case=case, **event["reading"]))
            elif event["ev"] == "failed":
                raise WorkerDiedError("error", event["message"])
            elif event["ev"] == "trial_done":
                return

    def _ready(self, backend: str) -> WorkerProcess:
        if self.worker is None:
            self.worker = WorkerProcess(ParityInterpreter())
            command = {"cmd": "start", "device": self.probe.device.to_json(), "backend": backend, "backend_files": []}
            self.worker.send(command)
        return self.worker

    def _end(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.close()
            self.worker = None


def grid(device_type: str, seeds: int, lengths: Sequence[int] = ()) -> Iterator[Case]:
    """The cases. The first dozen has every dtype and distribution, and each dozen another length: a budget may cut."""
    heads = 4 if device_type == "cuda" else 2
    for seed in range(seeds):
        for causal, d, N, inputs, dtype in itertools.product(
            (False, True), (64, 128), lengths or LENGTHS[device_type], DISTRIBUTIONS, ("bf16", "fp16", "fp32")
        ):
            kv_heads = heads // 2 if seed % 2 else heads
            yield Case(
                1, heads, N, N, d, kv_heads, dtype=dtype, causal=causal, inputs=inputs, seed=seed, direction="backward"
            )


def entries(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """The worst of each backend, dtype, N and tensor, and where it was."""
    worst: dict[tuple[str, str, int, str], dict[str, Any]] = {}
    for reading in readings:
        if reading.parity is None:
            continue
        for tensor, name in TENSORS.items():
            numbers = reading.parity.get(name)
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


def default_path(device: Device) -> Path:
    """results/<device>/calibration-parity.json."""
    return Path("results") / device.slug / NAME


def earlier(path: Path) -> list[dict[str, Any]]:
    """The entries of the calibration that is there, which what is measured now is added to. Raises UsageError."""
    if not path.is_file():
        return []
    try:
        data = json.loads(read_small(path))
        if data["schema"] == SCHEMA and all(isinstance(entry["backend"], str) for entry in data["entries"]):
            return list(data["entries"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise UsageError(f"'{path}' must be a parity calibration to be added to, got another file; choose another --out")


def write(calibrator: Calibrator, path: Path, known: Sequence[dict[str, Any]] = ()) -> None:
    """Write the readings; what is `known` of other backends stays. Raises UsageError."""
    device = calibrator.probe.device
    measured = {r.backend for r in calibrator.readings}
    kept = [entry for entry in known if entry["backend"] not in measured]
    failures = [
        {"backend": r.backend, "case": r.case.label(), "reason": r.reason}
        for r in calibrator.readings
        if not r.passed and r.parity is not None
    ]
    data = {
        "schema": SCHEMA,
        "device": device.name,
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "software": calibrator.probe.software.model_dump(mode="json"),
        "entries": sorted(
            [*kept, *entries(calibrator.readings)], key=lambda e: (e["backend"], e["dtype"], e["N"], e["tensor"])
        ),
        "failures": failures,
        "left_out": calibrator.lost,
    }
    write_text(path, json.dumps(data, indent=1) + "\n")


def able(probe: Probe, names: Sequence[str]) -> list[str]:
    """Those of `names` that can run on the device."""
    return [n for n in names if probe.backends[n].unavailable is None]
