"""Cases x backends -> planned rows: which run, which are skipped and why, and what each will need.

The plan is settled before the first launch, from the suite and from what the probe found. A row keeps its place and its
reason when it is skipped, so that a skip is a row of the result and never a hole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from fabench import forecast, registry
from fabench.case import Case, row_id
from fabench.cost import ExtraMemory, extra_memory_parts, input_bytes
from fabench.device import Device
from fabench.errors import BackendError, InternalError, UsageError
from fabench.measure.regime import choose
from fabench.names import Status
from fabench.probe import BackendReport, Probe
from fabench.reference_time import estimate_seconds
from fabench.suite import Suite
from fabench.text import bytes_text, counted, did_you_mean
from fabench.where import Condition

INPUT_SETS = 2
"""Input sets that must fit at the least: calls are timed over rotated ones, and a second set checks a stale output."""


@dataclass(frozen=True)
class PlannedRow:
    """One (case, backend): to be run if `status` is None, else skipped with `detail` as the reason."""

    row_id: str
    case: Case
    backend: str
    status: Status | None
    """None, "unsupported", "unavailable" or "predicted_oom"."""
    detail: str | None
    predicted_bytes: int
    """Memory of one call beyond its inputs, by the backend's memory model: what a measured peak is compared with."""
    predicted_s: float
    """Wall seconds of the row in one round, 0 if it is skipped; see `forecast`."""
    needed_bytes: int = 0
    """All that must be free: the input sets and `predicted_bytes`."""


@dataclass(frozen=True)
class Plan:
    """The rows of one round, case by case, and what a reader should know about them."""

    rows: list[PlannedRow]
    device: Device
    backends: tuple[str, ...] = ()
    """The chosen backends, in the order of their columns."""
    excluded: int = 0
    """Rows that the suite's `exclude` took out."""
    filtered: int = 0
    """Rows that --where, --shard and --row-id took out."""
    reference_s: float = 0.0
    """Seconds of all references together: computed once, shared by backends and rounds."""
    notes: tuple[str, ...] = field(default=())

    @property
    def to_run(self) -> list[PlannedRow]:
        """The rows that will be launched."""
        return [row for row in self.rows if row.status is None]

    def seconds(self, rounds: int) -> float:
        """Predicted wall seconds of `rounds` rounds; compiling is not in it."""
        if not self.to_run:
            return 0.0
        return self.reference_s + rounds * (forecast.WORKER_START_S + sum(row.predicted_s for row in self.rows))


def make(
    suite: Suite,
    probe: Probe,
    *,
    backends: Sequence[str] | None = None,
    where: Condition | None = None,
    shard: tuple[int, int] | None = None,
    row_ids: Collection[str] | None = None,
    try_oom: bool = False,
) -> Plan:
    """The plan of `suite` on the probe's device.

    `backends` (names or globs) replace the suite's list; those of --backend-file always come on top. `where` keeps the
    rows that match, `shard` (i, n) the i-th, from 1, of n parts of the cases that are left, and `row_ids`
    the rows of those names, even if the suite excludes them. `try_oom` runs what is predicted not to fit.

    Raises SuiteError or BackendError for a backend that is not there, UsageError for an unknown row id, a shard that
    does not exist, or if no row is left.
    """
    names = choose_backends(suite, backends, probe.backends)
    pairs = [(case, name) for case in suite.cases for name in names]
    if row_ids is not None:
        kept = _by_id(suite, probe, set(row_ids))
        excluded = 0
    else:
        kept = [pair for pair in pairs if not any(rule.matches(*pair) for rule in suite.exclude)]
        excluded = len(pairs) - len(kept)
    before = len(kept)
    if where is not None:
        kept = [pair for pair in kept if where.matches(*pair)]
    if shard is not None:
        kept = _shard(kept, *shard)
    if not kept:
        raise UsageError(_nothing_left(suite, before, excluded, where, shard))
    rows = [_row(case, name, suite, probe, try_oom) for case, name in kept]
    return Plan(
        rows=rows,
        device=probe.device,
        backends=tuple(names),
        excluded=excluded,
        filtered=before - len(kept) if row_ids is None else len(pairs) - len(kept),
        reference_s=sum(
            _reference_s(case, list(group), suite, probe) for case, group in groupby(rows, lambda r: r.case)
        ),
        notes=tuple(_notes(suite, names, own_list=backends is None and row_ids is None)),
    )


def choose_backends(suite: Suite, patterns: Sequence[str] | None, reports: dict[str, BackendReport]) -> list[str]:
    """Names of the backends to run: of `patterns`, else of the suite, and then those of the user's files.

    Raises SuiteError, with the line of the suite, or BackendError, for one that is not there; the baseline too.
    """
    own = [name for name, report in reports.items() if report.file is not None]
    if patterns is not None:
        chosen = registry.select(["*" if pattern == "all" else pattern for pattern in patterns], reports)
    else:
        chosen = []
        for index, pattern in enumerate(suite.backends):
            try:
                chosen += registry.select([pattern], reports)
            except BackendError as error:
                raise suite.error(("backends", index), str(error)) from None
    if suite.baseline is not None and suite.baseline not in reports:
        hint = did_you_mean(suite.baseline, reports) or f"; known: {', '.join(sorted(reports))}"
        raise suite.error(("baseline",), f"must be a backend, got '{suite.baseline}'{hint}")
    return list(dict.fromkeys([*chosen, *own]))


def _by_id(suite: Suite, probe: Probe, wanted: set[str]) -> list[tuple[Case, str]]:
    """The pairs of those names, also of a backend that is here but not chosen: it may have been run with --backend."""
    everything = [(case, name) for case in suite.cases for name in probe.backends]
    known = {row_id(*pair): pair for pair in everything}
    if unknown := sorted(wanted - set(known)):
        raise UsageError(
            f"'{unknown[0]}' must be the id of a row of suite '{suite.name}', got none of its {len(known)}"
            f"{did_you_mean(unknown[0], known)}; ids are in the rows of its result files"
        )
    return [pair for name, pair in known.items() if name in wanted]


def _shard(pairs: list[tuple[Case, str]], i: int, n: int) -> list[tuple[Case, str]]:
    """Every n-th case from the i-th, in the order of their ids, which no axis of the sweep can be in step with.

    The backends of a case stay together, because they are timed interleaved.
    """
    if not 1 <= i <= n:
        raise UsageError(f"a shard must be i/n with 1 <= i <= n, got {i}/{n}")
    place = {case: index for index, case in enumerate(sorted({case for case, _ in pairs}, key=lambda case: case.id))}
    return [(case, name) for case, name in pairs if place[case] % n == i - 1]


def _nothing_left(
    suite: Suite, before: int, excluded: int, where: Condition | None, shard: tuple[int, int] | None
) -> str:
    if before == 0:
        return f"suite '{suite.name}' must leave a row to run, got all {excluded} of them excluded by its own 'exclude'"
    filters = [f"--where '{where}'"] if where is not None else []
    if shard is not None:
        filters.append(f"--shard {shard[0]}/{shard[1]}")
    rows = counted(before, "row")
    return f"{' and '.join(filters)} must leave a row to run, got none of {rows} of suite '{suite.name}'"


def _row(case: Case, name: str, suite: Suite, probe: Probe, try_oom: bool) -> PlannedRow:
    report, device = probe.backends[name], probe.device
    extra = extra_memory_parts(case, report.facts.memory, report.facts.matrices)
    needed = INPUT_SETS * input_bytes(case) + extra.total
    status, detail = _skip(case, name, suite, probe)
    if status is None and not try_oom and 0 < device.free_bytes < needed:
        status, detail = "predicted_oom", _too_much(case, extra, needed, device)
    seconds = 0.0
    if status is None:
        call_s = forecast.call_seconds(case, report.facts.memory, device, probe.identity.threads or 1)
        seconds = forecast.row_seconds(case, call_s, device, suite.measure.regime, suite.measure.seconds)
    return PlannedRow(row_id(case, name), case, name, status, detail, extra.total, seconds, needed)


def _skip(case: Case, name: str, suite: Suite, probe: Probe) -> tuple[Status | None, str | None]:
    """Whether and why a backend cannot run a case, by what the probe was told."""
    if (why := probe.backends[name].unavailable) is not None:
        return "unavailable", why
    if (case.id, name) not in probe.reasons:
        raise InternalError(f"the probe was not asked whether '{name}' takes the case {case.label()}")
    if reasons := probe.reasons[case.id, name]:
        return "unsupported", "; ".join(reasons)
    if not probe.backends[name].facts.cuda_graphs and choose(case, probe.device, suite.measure.regime) == "graph":
        return "unsupported", "regime graph, and its calls cannot be captured in a CUDA graph"
    return None, None


def _too_much(case: Case, extra: ExtraMemory, needed: int, device: Device) -> str:
    size = bytes_text
    parts = f"{INPUT_SETS} input sets {size(INPUT_SETS * input_bytes(case))}, outputs {size(extra.outputs)}, "
    parts += f"workspace {size(extra.workspace)}" + (f", saved {size(extra.saved)}" if extra.saved else "")
    return f"needs {size(needed)} ({parts}) > {size(device.free_bytes)} free; --try-oom launches it"


def _reference_s(case: Case, rows: list[PlannedRow], suite: Suite, probe: Probe) -> float:
    """Seconds of a case's reference: of sampled rows where a full one would take longer than the measurement."""
    running = [row.predicted_s for row in rows if row.status is None]
    if not running:
        return 0.0
    full = estimate_seconds(case, probe.device)
    mode = suite.parity.reference
    if mode == "full" or (mode == "auto" and full <= sum(running)):
        return full
    return min(full, estimate_seconds(case, probe.device, rows="sampled"))


def _notes(suite: Suite, names: Sequence[str], *, own_list: bool) -> Iterator[str]:
    """What a reader should know. A rule of `exclude` is looked at only where the suite's own backends run."""
    for rule in suite.exclude if own_list else ():
        if not any(rule.matches(case, name) for case in suite.cases for name in names):
            yield f"exclude '{rule}' matches no row"
    if suite.baseline is not None and suite.baseline not in names:
        yield f"the baseline '{suite.baseline}' is not among the backends chosen: no speed-ups"
