"""The report: one self-contained page about result files. What stands on it is gathered here, how is a template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import fabench
from fabench.names import FAILED, SEVERITY, Flag, Status
from fabench.records import Env
from fabench.resultfile import ResultFile
from fabench.text import bytes_text
from fabench.views.axes import shape_of
from fabench.views.grid import Table
from fabench.views.notes import FLAGS, about
from fabench.views.outcomes import Outcome
from fabench.views.plots import KINDS, Kind, omission, panel_figure
from fabench.views.published import NOT_STATED, claim_text, claims, is_published
from fabench.views.svg import PAGE, inline
from fabench.views.tables import Layout, tables
from fabench.views.values import VALUES, significant

ROW_VALUES = ("tflops", "ms", "interval", "mfu", "roofline", "speedup", "rho", "rmse", "peak")
"""What the table of all rows shows."""
SHOWN_FAILURES = 60
WIDE = 6.0
"""Inches above which a panel gets a line of the page to itself."""


@dataclass(frozen=True)
class Picture:
    """One panel of a plot as inline SVG."""

    title: str
    svg: str
    wide: bool


@dataclass(frozen=True)
class Section:
    """One kind of plot on the page."""

    kind: Kind
    pictures: tuple[Picture, ...]
    note: str
    """Which panels are not drawn."""
    caption: tuple[str, ...]
    """What the problems of all panels share."""


@dataclass(frozen=True)
class Trouble:
    """Rows of one backend that ended alike: a refusal, a missing library, or a failure of its own."""

    status: Status
    backend: str
    message: str
    cases: tuple[str, ...]
    rerun: str
    """The command that repeats the first of them; empty for what cannot be repeated."""
    failed: bool


def render(results: Sequence[ResultFile], outcomes: Sequence[Outcome], against: Sequence[ResultFile] = ()) -> str:
    """The page as HTML. `outcomes` are those of `results`, then those of `against` that stand beside them.

    There may be none, of a published source that states figures of no single problem.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    ours = [outcome for outcome in outcomes if outcome.ours]  # none if the files are published ones
    environment = Environment(
        loader=PackageLoader("fabench.views", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html").render(
        title=_title(results),
        version=fabench.__version__,
        files=[_file(result) for result in results],
        environments=_environments(results),
        statuses=[status for status in SEVERITY if any(o.status == status for o in ours)],
        summary=_summary(ours),
        troubles=_troubles(ours),
        shown_failures=SHOWN_FAILURES,
        speeds=_speed_tables(outcomes),
        sections=_sections(outcomes),
        flags=_flags(ours),
        clocks=_clocks(ours),
        rows=[table for group in _by_suite(ours or outcomes) for table in tables(group, _all_rows(group))],
        claims=[claim_text(what, figure) for result in [*results, *against] for what, figure in claims(result)],
    )


def _title(results: Sequence[ResultFile]) -> str:
    suites = dict.fromkeys(str(result.header.suite.get("name", "results")) for result in results)
    devices = dict.fromkeys(env.identity.model for result in results for env in result.envs.values())
    return f"{', '.join(suites)} on {', '.join(devices)}" if devices else ", ".join(suites)


def _file(result: ResultFile) -> dict[str, Any]:
    header = result.header
    sha = f", commit {header.harness.git_sha[:12]}" if header.harness.git_sha else ""
    dirty = " with local changes" if header.harness.dirty else ""
    return {
        "path": result.path,
        "suite": header.suite.get("name", ""),
        "description": header.suite.get("description", ""),
        "command": " ".join(["fabench", *header.argv[1:]]) if header.argv else "",
        "published": is_published(result),
        "started": header.started,
        "ended": result.footer.ended if result.footer else "",
        "rounds": header.rounds,
        "rows": len(result.rows),
        "planned": header.planned_rows,
        "state": "complete" if result.complete else result.truncated or "stopped before its last row",
        "fabench": f"{header.harness.version}{sha}{dirty}",
    }


def _environments(results: Sequence[ResultFile]) -> list[list[tuple[str, str]]]:
    """What was measured on, each once: the sessions of one machine differ in nothing that is shown."""
    found = [tuple(_environment(env)) for result in results for env in result.envs.values()]
    return [list(environment) for environment in dict.fromkeys(found)]


def _environment(env: Env) -> list[tuple[str, str]]:
    """(name, value) of what is known of the hardware and software."""
    identity, software, session = env.identity, env.software, env.session
    known: list[tuple[str, object]] = [
        ("device", identity.model),
        ("compute capability", identity.capability and "{}.{}".format(*identity.capability)),
        ("SMs", identity.sms),
        ("memory", identity.memory_bytes and bytes_text(identity.memory_bytes)),
        ("L2", identity.l2_bytes and bytes_text(identity.l2_bytes)),
        ("power limit", identity.power_limit_w and f"{identity.power_limit_w:g} W"),
        ("CPU", session.cpu),
        ("threads", identity.threads),
        ("peaks", _peaks(env)),
        ("driver", software.driver),
        ("CUDA", software.cuda),
        ("torch", software.torch),
        ("cuDNN", software.cudnn),
        ("Triton", software.triton),
        ("Python", software.python),
        *sorted(software.backends.items()),
        *sorted(software.variables.items()),
    ]
    return [(name, str(value)) for name, value in known if value not in (None, "", NOT_STATED)]


def _peaks(env: Env) -> str:
    rates = [f"{significant(flops / 1e12)} TFLOP/s {dtype}" for dtype, flops in env.peaks.flops.items()]
    if env.peaks.bandwidth:
        rates.append(f"{significant(env.peaks.bandwidth / 1e12)} TB/s")
    return f"{', '.join(rates)} ({env.peaks.source})" if rates else ""


def _summary(ours: Sequence[Outcome]) -> list[tuple[str, Counter[Status]]]:
    """(backend, rows by status), then all of them together."""
    by_backend: dict[str, Counter[Status]] = {}
    for outcome in ours:
        by_backend.setdefault(outcome.backend, Counter())[outcome.status] += 1
    return [*by_backend.items(), ("all", Counter(outcome.status for outcome in ours))]


def _troubles(ours: Sequence[Outcome]) -> list[Trouble]:
    """Everything that is not ok, alike endings together, the worst first."""
    groups: dict[tuple[Status, str, str], list[Outcome]] = {}
    for outcome in ours:
        if outcome.status != "ok":
            groups.setdefault((outcome.status, outcome.backend, about(outcome)[0]), []).append(outcome)
    found = [
        Trouble(status, backend, message.partition(": ")[2] or message, tuple(o.case.label() for o in group),
                group[0].worst.rerun if status in FAILED else "", status in FAILED)
        for (status, backend, message), group in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda trouble: -SEVERITY.index(trouble.status))


def _speed_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    return tables(outcomes, Layout()) if any(outcome.time_ns for outcome in outcomes) else []


def _by_suite(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Each suite's own: what varies in one is often the same for all of another."""
    suites: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        suites.setdefault(outcome.suite, []).append(outcome)
    return list(suites.values())


def _all_rows(ours: Sequence[Outcome]) -> Layout:
    values = [name for name in ROW_VALUES if any(VALUES[name].of(outcome) is not None for outcome in ours)]
    return Layout(row=(*shape_of(ours).varying, "backend"), col=("value",), values=tuple(values or ROW_VALUES[:1]))


def _sections(outcomes: Sequence[Outcome]) -> list[Section]:
    found = [
        Section(kind, tuple(_pictures(kind, outcomes)), omission(kind, outcomes), tuple(kind.caption(outcomes)))
        for kind in KINDS.values()
    ]
    return [section for section in found if section.pictures or section.note]


def _pictures(kind: Kind, outcomes: Sequence[Outcome]) -> Iterable[Picture]:
    for index, panel in enumerate(kind.panels(outcomes)):
        svg = inline(panel_figure(panel, PAGE), f"{kind.title}: {panel.title}", f"{kind.name}{index}")
        yield Picture(panel.title, svg, panel.width > WIDE)


def _flags(ours: Sequence[Outcome]) -> list[tuple[Flag, str, int, str]]:
    """(flag, what it says, rows, backends) of every flag that is there."""
    found = []
    for flag, text in FLAGS.items():
        flagged = [outcome for outcome in ours if flag in outcome.flags]
        if flagged:
            found.append((flag, text, len(flagged), ", ".join(dict.fromkeys(o.backend for o in flagged))))
    return found


def _clocks(ours: Sequence[Outcome]) -> list[tuple[str, list[str]]]:
    """(backend, [mean SM clock, lowest, mean power, hottest]) over its rows, where telemetry was read."""
    found = []
    for backend in dict.fromkeys(outcome.backend for outcome in ours):
        readings = [
            row.telemetry
            for o in ours
            if o.backend == backend
            for row in o.rows
            if row.telemetry and row.telemetry.polls
        ]
        if readings:
            columns = [
                _over(sum, (r.sm_clock_mhz_mean for r in readings)),
                _over(min, (r.sm_clock_mhz_min for r in readings)),
                _over(sum, (r.power_w_mean for r in readings)),
                _over(max, (r.temperature_c_max for r in readings)),
            ]
            found.append((backend, columns))
    return found


def _over(reduce: Any, values: Iterable[float | None]) -> str:
    """The smallest, the largest, or (given `sum`) the mean of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{reduce(known) / (len(known) if reduce is sum else 1):.0f}"
