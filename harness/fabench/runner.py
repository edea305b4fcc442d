"""A run from its request to its footer: suite, probe, plan, result file, rounds."""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabench import plan as planning
from fabench import probe as probing
from fabench import progress, suite
from fabench.in_process import InProcessWorker
from fabench.lock import device_lock
from fabench.measure.peaks import limits
from fabench.measure.telemetry import Poller
from fabench.names import Status
from fabench.plan import Plan, PlannedRow
from fabench.probe import Probe
from fabench.recorder import Recorder
from fabench.resultfile import Writer
from fabench.runrecords import check_same, env_record, header, now
from fabench.suite import Suite
from fabench.supervisor import Limits, Supervisor
from fabench.where import Condition
from fabench.worker_process import WorkerProcess

FINAL: tuple[Status, ...] = ("ok", "unsupported", "unavailable", "predicted_oom")
"""Statuses that --resume leaves as they are; every other row is tried again."""


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    suite: str
    out: Path | None = None
    device: str = "auto"
    backends: tuple[str, ...] = ()
    backend_files: tuple[str, ...] = ()
    where: str | None = None
    rounds: int | None = None
    regime: str | None = None
    seconds: float | None = None
    timeout_s: float = 120.0
    prepare_s: float = 300.0
    resume: Path | None = None
    shard: tuple[int, int] | None = None
    row_ids: frozenset[str] = frozenset()
    in_process: bool = False
    check: bool = True
    try_oom: bool = False
    wait: bool = False
    argv: tuple[str, ...] = ()

    @property
    def filter(self) -> dict[str, Any]:
        """What narrows or changes the suite, as the header records it."""
        given = {
            "where": self.where,
            "backend": list(self.backends) or None,
            "backend_file": list(self.backend_files) or None,
            "shard": list(self.shard) if self.shard else None,
            "rows": sorted(self.row_ids) or None,
            "check": None if self.check else False,
        }
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True)
class Prepared:
    """A request made concrete: the suite with the command line's changes, what is here, and what will be done."""

    request: Request
    suite: Suite
    probe: Probe
    plan: Plan


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    path: Path
    counts: Counter[Status]
    interrupted: bool


def prepare(request: Request) -> Prepared:
    """Read the suite, ask what is here, and plan. Raises UsageError subclasses; nothing has been written yet."""
    loaded = suite.load(request.suite).override(regime=request.regime, rounds=request.rounds, seconds=request.seconds)
    where = Condition.parse(request.where) if request.where else None
    probe = probing.ask(request.device, request.backend_files, loaded.cases)
    planned = planning.make(
        loaded,
        probe,
        backends=request.backends or None,
        where=where,
        shard=request.shard,
        row_ids=request.row_ids or None,
        try_oom=request.try_oom,
    )
    return Prepared(request, loaded, probe, planned)


def execute(ready: Prepared, notify: Callable[[str], None]) -> Outcome:
    """Run the plan into its result file. Raises UsageError before any work if it cannot be written."""
    request, probe = ready.request, ready.probe
    with ExitStack() as stack:
        if probe.device.type == "cuda":
            name = probe.session.gpu_uuid_hash or f"cuda-{probe.device.index}"
            stack.enter_context(device_lock(name, wait=request.wait, notify=notify))
        writer = stack.enter_context(open_writer(ready))
        env = env_record(probe, writer.header.session_id)
        if writer.resumed is not None:
            check_same(writer, ready.suite, request.filter, env)
        writer.write(env)
        done, rounds = finished(writer), range(ready.suite.measure.rounds)
        owed = {r: [row for row in ready.plan.rows if (row.row_id, r) not in done] for r in rounds}
        display = stack.enter_context(progress.shown(sum(map(len, owed.values()))))
        poller = stack.enter_context(Poller(probe.device))
        reports = probe.backends
        recorder = Recorder(
            writer,
            env,
            display,
            poller,
            limits=limits(probe.device),
            rerun=lambda row_id: rerun_command(request, row_id),
            facts={name: report.facts for name, report in reports.items()},
            sha256={name: report.sha256 for name, report in reports.items()},
        )
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="fabench-"))
        supervisor = Supervisor(
            InProcessWorker if request.in_process else WorkerProcess,
            start_command(ready, store),
            recorder,
            Limits(request.timeout_s, request.prepare_s),
            canary=canary_command(ready),
        )
        interrupted = run_rounds(supervisor, recorder, owed, ready.suite)
        writer.finish(complete=not interrupted)
        return Outcome(writer.path, recorder.counts, interrupted)


def run_rounds(supervisor: Supervisor, recorder: Recorder, owed: dict[int, list[PlannedRow]], loaded: Suite) -> bool:
    """All rounds; True if Ctrl-C or SIGTERM ended them early."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for round_, rows in owed.items():
            for row in rows:
                if row.status is not None:
                    recorder.skipped(row, round_)
            runnable = [row for row in rows if row.status is None]
            if runnable:
                supervisor.run_round(round_, runnable, loaded.seed)
    except KeyboardInterrupt:
        return True
    finally:
        supervisor.close()
        signal.signal(signal.SIGTERM, previous)
    return False


def finished(writer: Writer) -> set[tuple[str, int]]:
    """The (row_id, round) of a resumed file that are not tried again."""
    rows = () if writer.resumed is None else writer.resumed.rows
    return {(row.row_id, row.round) for row in rows if row.status in FINAL}


def open_writer(ready: Prepared) -> Writer:
    """The result file: resumed, or created with its header."""
    request, loaded = ready.request, ready.suite
    if request.resume is not None:
        return Writer.resume(request.resume)
    path = request.out or default_path(ready)
    return Writer.create(path, header(loaded, request.argv, request.filter, len(ready.plan.rows)))


def default_path(ready: Prepared) -> Path:
    """results/<device>/<suite>-<time>.jsonl under the current folder."""
    stamp = now().replace(":", "").replace("-", "").replace("+0000", "Z")
    return Path("results", ready.probe.device.slug, f"{ready.suite.name}-{stamp}.jsonl")


def start_command(ready: Prepared, store: str) -> dict[str, Any]:
    """What a fresh worker is told once."""
    measure = ready.suite.measure
    return {
        "device": ready.probe.device.to_json(),
        "backend_files": list(ready.request.backend_files),
        "store": store,
        "options": {
            "regime": measure.regime,
            "seconds": measure.seconds,
            "check": ready.request.check,
            "reference": ready.suite.parity.reference,
        },
    }


def canary_command(ready: Prepared) -> dict[str, Any]:
    """The canaries of this run: the GEMM of every dtype that occurs."""
    dtypes = sorted({row.case.dtype for row in ready.plan.rows if row.status is None})
    regime = "cpu" if ready.probe.device.type == "cpu" else ready.suite.measure.regime
    return {"dtypes": dtypes, "regime": "burst" if regime == "graph" else regime}


def rerun_command(request: Request, row_id: str) -> list[str]:
    """The command line that runs one row alone, in one process."""
    command = ["fabench", "run", request.suite, "--row-id", row_id, "--in-process"]
    if request.device != "auto":
        command += ["--device", request.device]
    for spec in request.backend_files:
        command += ["--backend-file", spec]
    return command


__all__ = ["Outcome", "Prepared", "Request", "execute", "prepare"]
