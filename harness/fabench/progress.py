"""What a run shows while it goes on: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import click

from fabench.case import Case
from fabench.records import Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

COLOURS = {"ok": "green", "wrong_result": "red", "crashed": "red", "timeout": "red", "error": "red", "oom": "yellow"}
BAR_WIDTH, NARROW_BAR_WIDTH, NARROW = 20, 6, 80
"""Characters of the bar itself, and on a terminal of fewer than `NARROW` columns."""


class Progress(Protocol):
    """What is shown while a run goes on."""

    def working(self, backend: str | None, case: Case) -> None:
        """What is at work now."""

    def row(self, row: Row) -> None:
        """A row is known."""

    def note(self, text: str) -> None:
        """A sentence worth reading."""


def row_line(row: Row) -> str:
    """One row in one line: verdict, speed or reason."""
    case = Case.from_key(row.key)
    text = f"{row.status:<13} {row.backend:<18} {case.label()}"
    if row.status == "ok" and row.quantiles and row.cost:
        seconds = row.quantiles["median"] * 1e-9
        text += f"  {seconds * 1e3:.4g} ms  {row.cost.flops / seconds * 1e-12:.3g} TFLOP/s"
        if row.parity and row.parity.O and row.parity.O.max_rho is not None:
            text += f"  rho {row.parity.O.max_rho:.2f}"
    elif row.detail:
        text += f"  {row.detail.message}"
    return text + (f"  [{', '.join(row.flags)}]" if row.flags else "")


class Lines:
    """Plain lines on stderr: one a row, numbered."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0

    def working(self, backend: str | None, case: Case) -> None:
        """Nothing: a line is printed when a row is done."""

    def row(self, row: Row) -> None:
        """Print the row's line, with the command that repeats it if it failed."""
        self.count += 1
        self.note(f"[{self.count}/{self.total}] {row_line(row)}")
        if failed(row):
            self.note(f"    rerun: {row.rerun}")

    def note(self, text: str) -> None:
        """Print it. That nobody reads (a closed pipe or terminal) is no reason to stop measuring."""
        with suppress(OSError):
            click.echo(text, err=True)


class LiveBar:
    """Rows done, the time left and counts by status; under them what is at work. Failures stay as lines above."""

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self.bar, self.task = bar, task
        self.counts: Counter[str] = Counter()

    def working(self, backend: str | None, case: Case) -> None:
        """Show it under the bar."""
        self.bar.update(self.task, at_work=f"{backend or 'reference'} · {case.label()}")

    def row(self, row: Row) -> None:
        """Advance; say so if it failed."""
        self.counts[row.status] += 1
        self.bar.update(self.task, advance=1, counts=self.counts)
        if failed(row):
            self.note(f"{row_line(row)}\n    rerun: {row.rerun}")

    def note(self, text: str) -> None:
        """Print it above the bar."""
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


def failed(row: Row) -> bool:
    """True for the statuses that need somebody's attention."""
    return row.status in ("wrong_result", "crashed", "timeout", "error", "oom")


@contextmanager
def shown(total: int) -> Iterator[Progress]:
    """The display that suits stderr: a live bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield Lines(total)
        return
    from rich.console import Console

    with live_bar(Console(stderr=True), total) as bar:
        yield bar


@contextmanager
def live_bar(console: Console, total: int) -> Iterator[LiveBar]:
    """Two lines that fit any width: what does not is cut at its end, and the numbers stay."""
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class Counts(progress.ProgressColumn):
        """Rows by status, those that need attention first; the one column that gives way."""

        def render(self, task: progress.Task) -> Text:
            counts = task.fields["counts"]
            order = sorted(counts, key=lambda status: (COLOURS.get(status) != "red", status))
            text = Text(no_wrap=True, overflow="ellipsis")
            for status in order:
                text.append(f"{status} {counts[status]}", COLOURS.get(status, "")).append(" ")
            return text

    class TwoLines(progress.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(task.fields["at_work"], "dim", no_wrap=True, overflow="ellipsis")

    width = BAR_WIDTH if console.width >= NARROW else NARROW_BAR_WIDTH
    columns = (
        progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
        progress.BarColumn(width, table_column=Column(no_wrap=True)),
        progress.TimeRemainingColumn(table_column=Column(no_wrap=True)),
        Counts(table_column=Column(no_wrap=False)),
    )
    with TwoLines(*columns, console=console) as bar:
        yield LiveBar(bar, bar.add_task("run", total=total, at_work="starting", counts=Counter[str]()))
