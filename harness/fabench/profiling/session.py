"""Profiling one backend on one case: under ncu where that counts, else by torch's profiler, saying why."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fabench.case import Case
from fabench.device import Device
from fabench.errors import BackendError
from fabench.interpreter import HERE
from fabench.profiling import ncu
from fabench.profiling.kernel import Kernel, Profile, Tool, by_name

TIMEOUT_S = 300.0
NO_NCU = "ncu is not installed; put Nsight Compute's ncu on the PATH for DRAM bytes, hit rates and utilization"
ON_CPU = "a CPU has no GPU counters: operators and their own times"


def profile_all(
    case: Case, backends: Sequence[str], device: Device, backend_files: Sequence[str] = (), *,
    timeout_s: float = TIMEOUT_S,
) -> list[Profile]:  # fmt: skip
    """A profile of each backend in turn; once ncu may not count here, it is not asked again."""
    found: list[Profile] = []
    for backend in backends:
        refused = ncu.NOT_ALLOWED if any(earlier.note == ncu.NOT_ALLOWED for earlier in found) else None
        found.append(profile(case, backend, device, backend_files, timeout_s=timeout_s, refused=refused))
    return found


def profile(
    case: Case, backend: str, device: Device, backend_files: Sequence[str] = (), *, timeout_s: float = TIMEOUT_S,
    refused: str | None = None,
) -> Profile:  # fmt: skip
    """The kernels of one call; `refused` says why ncu need not be asked.

    Raises BackendError, one sentence, if the backend cannot make the call.
    """
    tool = ncu.find()
    without = ON_CPU if device.type == "cpu" else refused or (NO_NCU if tool is None else None)
    if without or tool is None:
        return Profile(backend, "torch", _by_torch(case, backend, device, backend_files, timeout_s), without or NO_NCU)
    with tempfile.TemporaryDirectory(prefix="fabench-") as folder:
        request = _request(Path(folder), "ncu", case, backend, device, backend_files)
        try:
            launches = ncu.launches(tool, Path(folder) / "ncu.csv", _target(request), timeout_s, HERE.environment())
        except ncu.NcuError as error:
            _refused(Path(folder))
            return Profile(backend, "torch", _by_torch(case, backend, device, backend_files, timeout_s), str(error))
        _refused(Path(folder))
    return Profile(backend, "ncu", by_name(launches))


def _by_torch(
    case: Case, backend: str, device: Device, backend_files: Sequence[str], timeout_s: float
) -> tuple[Kernel, ...]:
    with tempfile.TemporaryDirectory(prefix="fabench-") as name:
        folder = Path(name)
        request = _request(folder, "torch", case, backend, device, backend_files)
        try:
            done = subprocess.run(
                _target(request), capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
                env=HERE.environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise BackendError(f"'{backend}' must make one call within {timeout_s:g} s, got none by then") from None
        answer = _refused(folder)
        if answer is None:
            words = (done.stderr or done.stdout).strip().splitlines()
            last = f" after printing: {words[-1][:300]}" if words else ""
            raise BackendError(f"'{backend}' must run without ending its process, got exit {done.returncode}{last}")
        return tuple(Kernel(**kernel) for kernel in answer["kernels"])


def _request(folder: Path, tool: Tool, case: Case, backend: str, device: Device, backend_files: Sequence[str]) -> Path:
    path = folder / "request.json"
    path.write_text(
        json.dumps(
            {
                "tool": tool,
                "case": case.key,
                "backend": backend,
                "backend_files": list(backend_files),
                "device": device.to_json(),
                "answer": str(folder / "answer.json"),
            }
        )
    )
    return path


def _target(request: Path) -> list[str]:
    return HERE.command("fabench.profiling.target", str(request))


def _refused(folder: Path) -> dict[str, Any] | None:
    """The target's answer, None if it left none; raises BackendError if it is an error."""
    path = folder / "answer.json"
    if not path.exists():
        return None
    answer: dict[str, Any] = json.loads(path.read_text())
    if "error" in answer:
        raise BackendError(answer["error"])
    return answer
