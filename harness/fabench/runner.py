"""A prepared run, or the two sides of an A/B run, from the result file's first line to its footer, round by round."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fabench import progress
from fabench.ab import side_path, turns
from fabench.busy import warning
from fabench.compile_ahead import affordable, compile_ahead, work_of
from fabench.errors import InternalError, RecordError, UsageError
from fabench.in_process import InProcessWorker
from fabench.lock import device_lock
from fabench.measure.peaks import limits
from fabench.measure.telemetry import Poller
from fabench.names import Status
from fabench.plan import PlannedRow
from fabench.recorder import Recorder
from fabench.request import Prepared, rerun_command
from fabench.resultfile import ResultFile, Writer, read
from fabench.runrecords import check_same, env_record, header, now
from fabench.scratch import scratch
from fabench.supervised import Limits as RowLimits
from fabench.supervisor import Supervisor
from fabench.text import counted
from fabench.worker_process import WorkerProcess

FINAL: tuple[Status, ...] = ("ok", "unsupported", "unavailable", "predicted_oom")
"""Statuses that --resume leaves as they are (see `finished`); every other row is tried again."""


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    path: Path
    counts: Counter[Status]
    interrupted: bool


@dataclass
class Line:
    """One result file being written: the whole of a plain run, or a side of an A/B run."""

    ready: Prepared
    writer: Writer
    recorder: Recorder
    supervisor: Supervisor
    owed: dict[int, list[PlannedRow]]

    def compile(self, display: progress.Progress) -> None:
        """Compile what its rows need, if that was asked for, before any of them is timed."""
        request, probe = self.ready.request, self.ready.probe
        rows = itertools.chain.from_iterable(self.owed.values())
        work = work_of(rows, lambda name: probe.backends[name].facts.keeps_compiled)
        if work and request.compile_ahead:
            processes = affordable(request.compile_ahead, probe.device.free_bytes, probe.device.type)
            start, command = self.supervisor.start_worker, self.supervisor.start_command
            display.note(compile_ahead(work, start, command, processes, request.prepare_s, display.working))

    def round(self, round_: int) -> None:
        """Write what the plan skipped, run the rest."""
        rows = self.owed[round_]
        for row in rows:
            if row.status is not None:
                self.recorder.skipped(row, round_)
        if runnable := [row for row in rows if row.status is None]:
            self.supervisor.run_round(round_, runnable, self.ready.suite.seed)


def execute(sides: Sequence[Prepared], notify: Callable[[str], None]) -> list[Outcome]:
    """Run one plan, or two in turns, each into its result file. Raises UsageError before any work if it cannot."""
    request, probe = sides[0].request, sides[0].probe
    session_id = uuid.uuid4().hex
    with ExitStack() as stack:
        if probe.device.type == "cuda":
            name = probe.session.gpu_uuid_hash or f"cuda-{probe.device.index}"
            stack.enter_context(device_lock(name, wait=request.wait, notify=notify))
        writers = open_writers(sides, session_id, stack)
        if busy := warning(probe):
            notify(busy)
        poller = stack.enter_context(Poller(probe.device))
        store = stack.enter_context(scratch())
        owed = [owed_rows(ready, writer) for ready, writer in zip(sides, writers, strict=True)]
        total = sum(len(rows) for rounds in owed for rows in rounds.values())
        display = stack.enter_context(progress.shown(total))
        lines = [
            open_line(ready, writer, rows, display, poller, store)
            for ready, writer, rows in zip(sides, writers, owed, strict=True)
        ]
        interrupted = run_rounds(lines, sides[0].suite.measure.rounds, display)
        for line in lines:
            line.writer.finish(complete=not interrupted)
        return [Outcome(line.writer.path, line.recorder.counts, interrupted) for line in lines]


def open_line(
    ready: Prepared,
    writer: Writer,
    owed: dict[int, list[PlannedRow]],
    display: progress.Progress,
    poller: Poller,
    store: str,
) -> Line:
    """Check a resumed file, write where this run measures, and make what will run it."""
    request, probe = ready.request, ready.probe
    env = env_record(probe, writer.header.session_id)
    if writer.resumed is not None:
        check_same(writer.resumed, ready.suite, request.filter, env)
    writer.write(env)
    recorder = Recorder(
        writer,
        env,
        display,
        poller,
        limits=limits(probe.device),
        rerun=lambda row_id: rerun_command(request, row_id),
        facts={name: report.facts for name, report in probe.backends.items()},
        sha256={name: report.sha256 for name, report in probe.backends.items()},
    )
    start = InProcessWorker if request.in_process else partial(WorkerProcess, ready.interpreter)
    row_limits = RowLimits(request.timeout_s, request.prepare_s)
    supervisor = Supervisor(
        start, start_command(ready, store), recorder, row_limits, canary=canary_command(ready), like=ready.like
    )
    return Line(ready, writer, recorder, supervisor, owed)


def run_rounds(lines: Sequence[Line], rounds: int, display: progress.Progress) -> bool:
    """All rounds, the sides of an A/B run in turns; True if Ctrl-C ended them early."""
    order = turns(rounds) if len(lines) == 2 else ((round_, 0) for round_ in range(rounds))
    try:
        for line in lines:
            line.compile(display)
        for round_, side in order:
            if len(lines) == 2:
                display.note(f"round {round_ + 1} of {rounds}, side {'ab'[side]}")
            lines[side].round(round_)
    except KeyboardInterrupt:
        return True
    return False


def owed_rows(ready: Prepared, writer: Writer) -> dict[int, list[PlannedRow]]:
    """By round, the rows that the file does not have yet."""
    done = finished(writer.resumed, ready)
    rounds = range(ready.suite.measure.rounds)
    return {r: [row for row in ready.plan.rows if (row.row_id, r) not in done] for r in rounds}


def finished(begun: ResultFile | None, ready: Prepared) -> set[tuple[str, int]]:
    """The (row_id, round) of a file to continue that are not tried again.

    A row is one of the code that it came from, a user's file or a backend of this repository: once that has changed,
    all its rows are tried again, so that no table mixes two kernels under one name. Not all files say which it was.
    """
    digests = {name: report.sha256 for name, report in ready.probe.backends.items()}
    return {
        (row.row_id, row.round)
        for row in (begun.rows if begun is not None else ())
        if row.status in FINAL and row.backend_sha256 in (None, digests.get(row.backend))
    }


def remaining(ready: Prepared) -> Prepared:
    """The same with the rows only that --resume would try, for a dry run. Raises RecordError as the run would."""
    if ready.request.resume is None:
        return ready
    begun = read(ready.request.resume, allow_partial=True)
    check_same(begun, ready.suite, ready.request.filter, env_record(ready.probe, begun.header.session_id))
    done, planned = finished(begun, ready), ready.plan.rows
    rows = [row for row in planned if any((row.row_id, r) not in done for r in range(ready.suite.measure.rounds))]
    note = f"{len(planned) - len(rows)} of {counted(len(planned), 'row')} are in '{begun.path}' and stay as they are"
    plan = replace(
        ready.plan,
        rows=rows,
        filtered=ready.plan.filtered + len(planned) - len(rows),
        notes=(*ready.plan.notes, note),
    )
    return replace(ready, plan=plan)


def open_writers(sides: Sequence[Prepared], session_id: str, stack: ExitStack) -> list[Writer]:
    """A result file a side, or none at all: half of an A/B run would only be in the way of the next."""
    out = sides[0].request.out
    if out is not None and len(sides) == 2:
        for path in (side_path(out, side) for side in range(2)):
            if path.exists():
                raise UsageError(f"'{path}' must not exist yet; choose another --out")
    writers: list[Writer] = []
    try:
        for ready in sides:
            writers.append(stack.enter_context(open_writer(ready, session_id, sides)))
    except RecordError:
        for begun in writers:
            begun.path.unlink(missing_ok=True)
        raise
    return writers


def open_writer(ready: Prepared, session_id: str, sides: Sequence[Prepared]) -> Writer:
    """The result file: resumed, or created with its header; each side of an A/B run has its own."""
    request, loaded = ready.request, ready.suite
    if request.resume is not None:
        return Writer.resume(request.resume)
    side = next(i for i, other in enumerate(sides) if other is ready)
    label: Literal["a", "b"] | None = ("a", "b")[side] if len(sides) == 2 else None
    first = header(loaded, request.argv, request.filter, len(ready.plan.rows), session_id, label)
    for path in [request.out] if request.out is not None else default_paths(ready):
        own = path if label is None else side_path(path, side)
        try:
            return Writer.create(own, first)
        except RecordError:
            if request.out is not None or not own.exists():
                raise
    raise InternalError("names of result files do not run out")


def default_paths(ready: Prepared) -> Iterator[Path]:
    """results/<device>/<suite>-<time>.jsonl under the current folder, or the next name that no other run has taken."""
    stamp = now().replace(":", "").replace("-", "").replace("+0000", "Z")
    for number in itertools.count(1):
        again = f"-{number}" if number > 1 else ""
        yield Path("results", ready.probe.device.slug, f"{ready.suite.name}-{stamp}{again}.jsonl")


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


__all__ = ["Outcome", "execute", "remaining"]
