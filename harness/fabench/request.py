"""What the command line asked for, and the same made concrete: suite, what is here, plan. Nothing is run yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fabench import plan as planning
from fabench import probe as probing
from fabench import resultfile, suite
from fabench.ab import CANDIDATE, Side, as_candidate
from fabench.errors import UsageError
from fabench.interpreter import HERE, Interpreter
from fabench.plan import Plan
from fabench.probe import Probe
from fabench.suite import Suite
from fabench.suite_yaml import shown
from fabench.text import counted
from fabench.where import Condition


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
    like: Path | None = None
    shard: tuple[int, int] | None = None
    row_ids: frozenset[str] = frozenset()
    in_process: bool = False
    check: bool = True
    try_oom: bool = False
    compile_ahead: int = 0
    """Processes that compile before anything is timed; 0 for none."""
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
            "like": str(self.like) if self.like else None,
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
    interpreter: Interpreter = HERE
    like: dict[str, tuple[int, int]] = field(default_factory=dict)
    """K and n of older rows, by row_id; see --like."""


def prepare(request: Request, interpreter: Interpreter = HERE) -> Prepared:
    """Read the suite, ask what is here, and plan. Raises UsageError subclasses; nothing has been written yet."""
    old = None if request.like is None else resultfile.read(request.like, allow_partial=None)
    regime = request.regime if old is None else like_regime(old, request.regime)
    loaded = suite.load(request.suite).override(regime=regime, rounds=request.rounds, seconds=request.seconds)
    where = None if request.where is None else Condition.parse(request.where)
    probe = probing.ask(request.device, request.backend_files, loaded.cases, interpreter=interpreter)
    planned = planning.make(
        loaded,
        probe,
        backends=request.backends or None,
        where=where,
        shard=request.shard,
        row_ids=request.row_ids or None,
        try_oom=request.try_oom,
    )
    like = {} if old is None else like_rows(old, planned)
    if like and (others := sum(row.status is None and row.row_id not in like for row in planned.rows)):
        note = f"{counted(others, 'row was', 'rows were')} not timed in '{request.like}': K and n are chosen anew"
        planned = replace(planned, notes=(*planned.notes, note))
    return Prepared(request, loaded, probe, planned, interpreter, like)


def like_regime(old: resultfile.ResultFile, asked: str | None) -> str | None:
    """The regime that the older file was measured in, as its header says. Raises UsageError if another one is asked."""
    measure = old.header.suite.get("measure")
    regime = measure.get("regime") if isinstance(measure, dict) else None
    if regime is None or asked in (None, regime):
        return regime or asked
    raise UsageError(
        f"--like measures as '{old.path}' was, in regime '{regime}', got --regime {asked}; leave one of them out"
    )


def like_rows(old: resultfile.ResultFile, planned: Plan) -> dict[str, tuple[int, int]]:
    """K and n of every planned row that the older file timed. Raises UsageError if it timed none of them."""
    wanted = {row.row_id for row in planned.rows}
    like = {row.row_id: (row.K, row.n) for row in old.rows if row.row_id in wanted and row.K and row.n}
    if not like:
        raise UsageError(f"--like must be a file with rows of this suite that were timed, got none in '{old.path}'")
    return like


def prepare_ab(request: Request, a: Side, b: Side) -> list[Prepared]:
    """Both sides of an A/B run. Raises UsageError if they would not measure the same rows on the same device."""
    sides = []
    for side in (a, b):
        files, backends = request.backend_files, request.backends
        if side.kernel is not None:
            files, backends = (*files, as_candidate(side.kernel)), (*backends, CANDIDATE)
        sides.append(prepare(replace(request, backend_files=files, backends=backends), side.interpreter))
    one, other = sides
    seen, seen_by_b = (side.probe.identity.model_dump() for side in sides)
    if differing := [key for key in seen if seen[key] != seen_by_b[key]]:
        key = differing[0]
        raise UsageError(
            f"both sides of --ab must see the same device, got '{key}' {shown(seen[key])} and {shown(seen_by_b[key])}; "
            "set what both have in common before the run, and the device with --device"
        )
    if [row.row_id for row in one.plan.rows] != [row.row_id for row in other.plan.rows]:
        raise UsageError("both sides of --ab must have the same rows, got different backends; name them with --backend")
    return sides


def rerun_command(request: Request, row_id: str) -> list[str]:
    """The command line that runs one row alone, in one process."""
    command = ["fabench", "run", request.suite, "--row-id", row_id, "--in-process"]
    if request.device != "auto":
        command += ["--device", request.device]
    for spec in request.backend_files:
        command += ["--backend-file", spec]
    return command
