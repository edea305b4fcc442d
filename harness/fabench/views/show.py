"""Result files as text: what `fabench show` prints, and `fabench run` at its end."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from fabench.busy import afterwards
from fabench.errors import UsageError
from fabench.resultfile import ResultFile
from fabench.text import counted
from fabench.views.flat import as_csv, as_json
from fabench.views.outcomes import Outcome, beside, gather
from fabench.views.published import claim_text, claims
from fabench.views.render import PAGE, render, wrapped
from fabench.views.tables import Layout, tables
from fabench.where import Condition


def show(
    results: Sequence[ResultFile],
    style: str = "simple",
    layout: Layout | None = None,
    *,
    where: Condition | None = None,
    baseline: str | None = None,
    against: Sequence[ResultFile] = (),
    width: int | None = None,
) -> str:
    """The files as text in the format `style`.

    `against` are files, of published figures or of a run, to stand beside the same problems of `results`. `width`
    breaks the simple format to fit a terminal (see `terminal_width`), github always fits a page. Raises UsageError if
    nothing is left to show.
    """
    layout = layout or Layout()
    outcomes = placed(results, where, baseline, against)
    if style == "csv":
        return as_csv(outcomes, layout.values)
    if style == "json":
        return as_json(outcomes, layout.values)
    parts = [_claims(result, width) for result in [*results, *against] if claims(result)]
    if outcomes or any(result.rows for result in results):
        broken_at = PAGE if style == "github" else width
        parts = [*(render(table, style, broken_at) for table in tables(outcomes, layout)), *parts]
    files = [*results, *against]
    doubts = [wrapped(text, width, "  ") for result in files for text in (*_busy(result), *_stopped(result))]
    return "\n\n".join([*(parts or ["no rows"]), *doubts])


def placed(
    results: Sequence[ResultFile],
    where: Condition | None = None,
    baseline: str | None = None,
    against: Sequence[ResultFile] = (),
) -> list[Outcome]:
    """The outcomes of `results`, then those of `against` for the same problems. Raises UsageError if there are none."""
    ours = gather(results, where, baseline)
    return ours + _against(ours, results, against, baseline)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is, or None if it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _against(
    ours: Sequence[Outcome], results: Sequence[ResultFile], against: Sequence[ResultFile], baseline: str | None
) -> list[Outcome]:
    if not against:
        return []
    has_baseline = any(row.backend == baseline for result in against for row in result.rows)
    matching = beside(ours, gather(against, baseline=baseline if has_baseline else None, among=results))
    if not matching:
        paths = ", ".join(f"'{result.path}'" for result in against)
        raise UsageError(f"none of the problems shown has a figure in {paths}; 'fabench show' prints what it has")
    return matching


def _claims(result: ResultFile, width: int | None) -> str:
    """What a published source states of no single problem, as a list."""
    lines = [f"{result.header.suite.get('name')} states, of no single problem:"]
    lines += [f"- {claim_text(what, figure)}" for what, figure in claims(result)]
    return "\n".join(line if width is None else textwrap.fill(line, width, subsequent_indent="  ") for line in lines)


def _busy(result: ResultFile) -> list[str]:
    """A line for a file with a session on a CPU that others kept at work."""
    found = [why for env in result.envs.values() if (why := afterwards(env)) is not None]
    return [f"{result.path}: {found[0]}"] if found else []


def _stopped(result: ResultFile) -> list[str]:
    """A line for a file that holds a part of its run."""
    if result.complete:
        return []
    why = result.truncated or "the run was stopped"
    planned = counted(result.header.planned_rows, "row is", "rows are")
    return [f"{result.path}: {why}; {len(result.rows)} of {planned} there"]
