"""What a table cell or a point of a plot stands for: one case and backend of one file, its rounds taken together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from fabench.case import Case
from fabench.errors import UsageError
from fabench.names import FLAGS, SEVERITY, Flag, Regime, Status
from fabench.records import Env, Published, Row
from fabench.resultfile import ResultFile, case_of
from fabench.stats import median_interval
from fabench.text import did_you_mean
from fabench.where import Condition


@dataclass(frozen=True, eq=False)
class Outcome:
    """The rows of one (case, backend), one a round, all of one file."""

    case: Case
    backend: str
    rows: tuple[Row, ...]
    env: Env
    file: str
    """A short name of the file, unique among the files shown."""
    device: str
    """The device's model name."""
    suite: str = ""
    """Its name."""
    regime: Regime | None = None
    """Of the case in this file: a backend that was skipped has it too."""
    baseline: Outcome | None = None
    """What the suite takes speed-ups against, for this case in this file."""
    origin: Outcome | None = None
    """Of another file's outcome that stands beside those shown (`--against`): as it is in its own file."""

    @property
    def status(self) -> Status:
        """The worst of the rounds."""
        return self.worst.status

    @cached_property
    def worst(self) -> Row:
        """The first row of the worst status."""
        return max(self.rows, key=lambda row: SEVERITY.index(row.status))

    @property
    def published(self) -> Published | None:
        """The source, if this is a published figure and not a measurement."""
        return self.rows[0].published

    @property
    def ours(self) -> bool:
        """True of what the files shown have measured: neither published, nor another file's that stands beside."""
        return self.published is None and self.origin is None

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """Every flag of any round, in the order of `names.FLAGS`."""
        seen = {flag for row in self.rows for flag in row.flags}
        return tuple(flag for flag in FLAGS if flag in seen)

    @cached_property
    def time_ns(self) -> float | None:
        """The median over rounds of each round's median; None without a verdict of ok, which has no speed."""
        medians = self._medians()
        return statistics.median(medians) if medians else None

    @cached_property
    def interval_ns(self) -> tuple[float, float] | None:
        """95 % interval of the median time: over rounds where there are two or more, else over the samples of the one.

        Of fewer than six rounds it is their range (see `stats.median_interval`).
        """
        medians = self._medians()
        if len(medians) > 1:
            return median_interval(medians)
        limits = self.rows[0].quantiles or {}
        return (limits["ci_low"], limits["ci_high"]) if medians and {"ci_low", "ci_high"} <= set(limits) else None

    def _medians(self) -> list[float]:
        if self.status != "ok":
            return []
        return [row.quantiles["median"] for row in self.rows if row.quantiles and "median" in row.quantiles]

    def median_of(self, read: Callable[[Row], float | None]) -> float | None:
        """The median over rounds of a number, of those rounds that have it."""
        values = [value for row in self.rows if (value := read(row)) is not None]
        return statistics.median(values) if values else None

    def largest(self, read: Callable[[Row], float | None]) -> float | None:
        """The largest over rounds of a number."""
        return max((value for row in self.rows if (value := read(row)) is not None), default=None)


def gather(
    files: Sequence[ResultFile],
    where: Condition | None = None,
    baseline: str | None = None,
    among: Sequence[ResultFile] = (),
) -> list[Outcome]:
    """The outcomes of all files, those that `where` matches; backends in the order in which the suite lists them.

    `baseline` names the backend to take speed-ups against in place of the suite's; it need not match `where`. The names
    of the files tell them from those of `among` too. Raises UsageError if no row is of that backend.
    """
    names = {row.backend for file in files for row in file.rows}
    if baseline is not None and names and baseline not in names:
        hint = did_you_mean(baseline, names) or f"; there are {', '.join(sorted(names))}"
        raise UsageError(f"'--baseline' must be a backend of the files, got '{baseline}'{hint}")
    outcomes: list[Outcome] = []
    names_of = labels([file.path for file in [*files, *among]])
    for label, result in zip(names_of, files, strict=False):
        name = baseline or result.header.suite.get("baseline")
        found = [_outcome(rows, result, label) for rows in _by_row_id(result.rows)]
        outcomes += _with_baseline(_as_listed(found, result.header.suite.get("backends")), name)
    return [o for o in outcomes if where is None or where.matches(o.case, o.backend)]


def _outcome(rows: list[Row], result: ResultFile, label: str) -> Outcome:
    env = result.env_of(rows[-1])
    suite = str(result.header.suite.get("name", ""))
    return Outcome(case_of(rows[0].key), rows[0].backend, tuple(rows), env, label, env.identity.model, suite)


def _as_listed(outcomes: list[Outcome], patterns: object) -> list[Outcome]:
    """By the first of the suite's names and globs that a backend matches, equals by name: a run shuffles its cases."""
    listed = [str(pattern) for pattern in patterns] if isinstance(patterns, list) else []
    if not listed:
        return outcomes

    def place(outcome: Outcome) -> tuple[int, str]:
        matching = (index for index, pattern in enumerate(listed) if fnmatchcase(outcome.backend, pattern))
        return next(matching, len(listed)), outcome.backend

    return sorted(outcomes, key=place)


def _with_baseline(outcomes: list[Outcome], baseline: str | None) -> list[Outcome]:
    """The outcomes of one file, each told its case's regime and baseline."""
    baselines = {o.case: o for o in outcomes if o.backend == baseline}
    regimes = {o.case: row.method.regime for o in outcomes for row in o.rows if row.method}
    return [replace(o, regime=regimes.get(o.case), baseline=baselines.get(o.case)) for o in outcomes]


def beside(ours: Sequence[Outcome], others: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes of other files for the problems that `ours` solves, with our case and place, named by their file.

    Of a published figure layout, inputs and seed are not known, and do not make another problem; two measured rows must
    be of one case. Where several files or devices of ours solve a problem, theirs stands beside each.
    """
    places: dict[object, dict[tuple[str, str], Outcome]] = {}
    measured = any(outcome.published is None for outcome in ours)
    for outcome in ours:
        for key in (outcome.case, _problem(outcome.case)):
            places.setdefault(key, {}).setdefault((outcome.device, outcome.file), outcome)
    return [
        replace(
            theirs, case=our.case, device=our.device, file=our.file, suite=our.suite, regime=our.regime,
            backend=f"{theirs.backend} [{theirs.file}]", origin=theirs,
        )
        for theirs in others
        for our in places.get(
            theirs.case if measured and theirs.published is None else _problem(theirs.case), {}
        ).values()
    ]  # fmt: skip


def labels(paths: Sequence[str]) -> list[str]:
    """A short name for each path: its stem, with as many folders as it takes to tell it from the others."""
    parts = [Path(path).with_suffix("").parts for path in paths]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        depth = 1
        while depth < len(own) and any(other[-depth:] == own[-depth:] for other in others):
            depth += 1
        names.append("/".join(own[-depth:]))
    return names


def _by_row_id(rows: Iterable[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.row_id, []).append(row)
    return list(groups.values())


def _problem(case: Case) -> tuple[object, ...]:
    return tuple(value for name, value in sorted(case.__dict__.items()) if name in _PROBLEM)


_PROBLEM = frozenset(Case.__dataclass_fields__) - {"layout", "inputs", "seed"}
