"""What is here: the device, the backends and what each says of every case, asked of one child process.

The parent never imports torch; `ask` starts `python -m fabench.probe`, which does, loads the user's files and answers
in plain data. The answer travels through a pipe of its own, so nothing a user's file prints can disturb it, and a file
that crashes or hangs at import is one sentence (BackendError).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from fabench import errors, records, registry, torch_here
from fabench.backend import Backend, Facts
from fabench.case import Case
from fabench.device import Device
from fabench.errors import BackendError, FabenchError, InternalError
from fabench.family import Family, end_with
from fabench.interpreter import HERE, Interpreter

TIMEOUT_S = 300.0
"""How long the child may take: importing torch and every library, and running the user's files."""


@dataclass(frozen=True)
class BackendReport:
    """One backend as the child saw it on the chosen device."""

    facts: Facts
    unavailable: str | None = None
    """Why it cannot run here, None if it can."""
    sha256: str | None = None
    """Of its code: the user's file that it came from, or what it is in this repository."""
    file: str | None = None


@dataclass(frozen=True)
class Probe:
    """The child's answer: plain data, nothing of torch in it."""

    device: Device
    identity: records.Identity
    software: records.Software
    session: records.Session
    backends: dict[str, BackendReport]
    reasons: dict[tuple[str, str], list[str]]
    """(case.id, backend) -> why it refuses the case, empty if it takes it. Every asked pair is a key."""


def ask(
    device: str = "auto",
    backend_files: Sequence[str] = (),
    cases: Sequence[Case] = (),
    backends: Sequence[str] | None = None,
    timeout_s: float = TIMEOUT_S,
    interpreter: Interpreter = HERE,
) -> Probe:
    """Ask a child process about a device ('auto', 'cpu', 'cuda:1'), the backends and the cases.

    `backends` are names or globs and None means all; those of `backend_files` (FILE.py[:function]) always come on top.
    Raises DeviceError if the device is not here and BackendError for unknown names or files that do not load.
    """
    cases = list({case.id: case for case in cases}.values())
    request = {
        "ask": "backends",
        "device": device,
        "backend_files": list(backend_files),
        "cases": [case.key for case in cases],
        "backends": None if backends is None else list(backends),
    }
    answer = call(request, timeout_s, interpreter)
    reports = {
        name: BackendReport(**{**report, "facts": Facts.from_json(report["facts"])})
        for name, report in answer["backends"].items()
    }
    reasons: dict[tuple[str, str], list[str]] = {(case.id, name): [] for case in cases for name in reports}
    for name, refused in answer["reasons"].items():
        for index, why in refused:
            reasons[cases[index].id, name] = why
    return Probe(
        device=Device.from_json(answer["device"]),
        identity=records.Identity(**answer["identity"]),
        software=records.Software(**answer["software"]),
        session=records.Session(**answer["session"]),
        backends=reports,
        reasons=reasons,
    )


def devices(timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Every device here, asked of a child process: the CPU first, then the CUDA devices."""
    return [Device.from_json(device) for device in call({"ask": "devices"}, timeout_s)["devices"]]


def tilings(cases: Sequence[Case], device: Device, timeout_s: float = TIMEOUT_S) -> dict[str, list[dict[str, Any]]]:
    """case.id -> the tilings (`tiling.Tiling` as JSON) of the shipped kernels that take the case on `device`."""
    request = {"ask": "tilings", "device": device.to_json(), "cases": [case.key for case in cases]}
    found: dict[str, list[dict[str, Any]]] = call(request, timeout_s)["tilings"]
    return found


def canary(device: str, dtypes: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[Device, dict[str, Any]]:
    """The device and one reading of its canaries (`measure.canary.CanaryReading` as JSON)."""
    answer = call({"ask": "canary", "device": device, "dtypes": list(dtypes)}, timeout_s)
    return Device.from_json(answer["device"]), answer["canary"]


def call(request: dict[str, Any], timeout_s: float = TIMEOUT_S, interpreter: Interpreter = HERE) -> dict[str, Any]:
    """Send one request to a fresh child and return its answer; an error it answers with is raised here as its class."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as output:
        family = Family(
            interpreter.command("fabench.probe", str(write_end), str(os.getpid())),
            interpreter.environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
        )
        child = family.process
        os.close(write_end)
        try:
            with os.fdopen(read_end, "rb") as pipe:
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it died at once: the missing answer says so below
                    child.stdin.write(json.dumps(request).encode())
                    child.stdin.close()
                line = _read_line(pipe, time.monotonic() + timeout_s)
        finally:
            _end(family, patient=sys.exc_info()[0] is None)
        if line is None:
            raise BackendError(
                f"{_culprit(request)} must load within {timeout_s:g} s, got no answer by then; "
                "look for work that it does at import"
            )
        if not line.endswith(b"\n"):
            raise BackendError(
                f"{_culprit(request)} must load without ending its process, got {_ending(child.returncode)}"
                f"{_last_words(output)}"
            )
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        raise BackendError(
            f"{_culprit(request)} must write to no file descriptor that it has not opened, and wrote into the answer"
        ) from None
    if "error" in answer:
        kind = getattr(errors, answer["error"], None)
        if isinstance(kind, type) and issubclass(kind, FabenchError):
            raise kind(answer["message"])
        raise InternalError(f"the probe failed: {answer['message']}")
    return answer


def _read_line(pipe: IO[bytes], deadline: float) -> bytes | None:
    """One line, or what came before the pipe closed; None once the deadline has passed."""
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _end(family: Family, *, patient: bool) -> None:
    """Wait for the child; end what it started, and itself if it does not end alone."""
    child = family.process
    with contextlib.suppress(BrokenPipeError):
        if child.stdin is not None:
            child.stdin.close()
    if patient:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
    family.kill()


def _culprit(request: dict[str, Any]) -> str:
    """Who is most likely to have ended the child: the user's files, else what it imports."""
    files = request.get("backend_files") or []
    return f"'{', '.join(files)}'" if files else "'torch' or a backend's library"


def _ending(code: int) -> str:
    if code < 0:
        return f"a crash by {signal.Signals(-code).name}"
    return f"exit code {code} without an answer"


def _last_words(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return f" after printing: {lines[-1].strip()[:300]}" if lines else ""


# ---- the child --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """The child: read the request from stdin, answer one line of JSON into the pipe."""
    pipe, parent = map(int, arguments)
    os.set_inheritable(pipe, False)
    end_with(parent)
    os.register_at_fork(after_in_child=lambda: os.close(pipe))  # the answer is nobody else's to give
    request = json.load(sys.stdin)
    try:
        answer = _answer(request)
    except FabenchError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    except Exception as error:
        import traceback

        answer = {"error": "unexpected", "message": f"{error}\n{traceback.format_exc()}"}
    with os.fdopen(pipe, "wb") as out:
        out.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)  # whatever threads or exit hooks the user's file left behind


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from fabench import environment

    if request["ask"] == "doctor":
        from fabench import checkup

        return {"findings": [finding.to_json() for finding in checkup.findings()]}
    if request["ask"] == "tilings":  # arithmetic: torch need not be here, and importing it would take most of the time
        return {
            "tilings": _tilings([Case.from_key(key) for key in request["cases"]], Device.from_json(request["device"]))
        }
    torch_here.imported()
    if request["ask"] == "devices":
        return {"devices": [device.to_json() for device in environment.devices()]}
    device = environment.resolve(request["device"])
    if request["ask"] == "canary":
        return {"device": device.to_json(), "canary": _canary(device, request["dtypes"])}
    loaded, origin = load(request["backend_files"])
    chosen = list(loaded)
    if request["backends"] is not None:
        chosen = list(dict.fromkeys([*registry.select(request["backends"], loaded), *origin]))
    cases = [Case.from_key(key) for key in request["cases"]]
    reports, reasons, versions = {}, {}, {}
    for name in chosen:
        backend, spec = loaded[name], origin.get(name)
        unavailable = _guard(backend, "unavailable", device)
        if unavailable is None:
            versions.update(_guard(backend, "versions"))
        reports[name] = {
            "facts": backend.facts_on(device).to_json(),
            "unavailable": unavailable,
            "sha256": registry.sources_sha256(backend) if spec is None else spec.sha256,
            "file": None if spec is None else str(spec.path),
        }
        refusals = ((i, list(_guard(backend, "reasons", case, device))) for i, case in enumerate(cases))
        reasons[name] = [(i, why) for i, why in refusals if why]
    return {
        "device": device.to_json(),
        "identity": environment.identity(device).model_dump(mode="json"),
        "software": environment.software(device, versions).model_dump(mode="json"),
        "session": environment.session(device).model_dump(mode="json"),
        "backends": reports,
        "reasons": reasons,
    }


def _tilings(cases: Sequence[Case], device: Device) -> dict[str, list[dict[str, Any]]]:
    shipped = [backend for backend in registry.shipped().values() if type(backend).tiling is not Backend.tiling]
    return {
        case.id: [
            tiling.to_json()
            for backend in shipped
            if not _guard(backend, "reasons", case, device)
            and (tiling := _guard(backend, "tiling", case, device)) is not None
        ]
        for case in cases
    }


def _canary(device: Device, dtypes: Sequence[str]) -> dict[str, Any]:
    from fabench.measure.canary import measure_canary
    from fabench.measure.engine import engine_for

    return measure_canary(engine_for(device), dtypes, "cpu" if device.type == "cpu" else "burst").to_json()


def load(backend_files: Iterable[str]) -> tuple[dict[str, Backend], dict[str, registry.FileSpec]]:
    """Every backend by name, and which file each of the user's came from. Runs the files; raises BackendError."""
    loaded = registry.shipped()
    origin: dict[str, registry.FileSpec] = {}
    for spec in backend_files:
        found = registry.from_file(spec)
        registry.add(loaded, found, spec)
        origin.update(dict.fromkeys((backend.name for backend in found), registry.FileSpec.parse(spec)))
    return loaded, origin


def _guard(backend: Backend, method: str, *arguments: Any) -> Any:
    """Ask a backend; what its own code raises is a sentence that names it."""
    try:
        return getattr(backend, method)(*arguments)
    except Exception as error:
        raise BackendError(f"'{backend.name}' must answer {method}(), got {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
