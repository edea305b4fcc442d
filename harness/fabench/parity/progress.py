"""What `fabench parity` and `calibrate` show while they go on: a live bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fabench.case import Case
from fabench.parity import calibrator
from fabench.parity.report import progress_line
from fabench.parity.runner import Watcher
from fabench.parity.trial import Result, Trial
from fabench.progress import LiveBar, live_bar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MOST_LINES = 12


class Lines(Watcher):
    """Failures as lines on stderr, the first dozen."""

    def __init__(self) -> None:
        self.failures = 0

    def result(self, result: Result) -> None:
        """Print a failure."""
        if result.bad:
            self.failures += 1
            if self.failures <= MOST_LINES:
                self.note(progress_line(result))
            elif self.failures == MOST_LINES + 1:
                self.note("… and more; see the table at the end")

    def note(self, text: str) -> None:
        """Print it."""
        click.echo(text, err=True)


class Bar(Lines):
    """A bar over the trials, with what is at work and how many have failed."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        super().__init__()
        self.progress, self.task = progress, task
        self.trials: set[Trial] = set()

    def start(self, trials: int) -> None:
        """Set the bar's length."""
        self.progress.update(self.task, total=trials)

    def result(self, result: Result) -> None:
        """Advance with each new trial."""
        super().result(result)
        self.trials.add(result.trial)
        self.progress.update(
            self.task,
            completed=len(self.trials),
            failed=f"[red]{self.failures} failed[/]" if self.failures else "",
            at_work=result.trial.label(),
        )

    def note(self, text: str) -> None:
        """Print it above the bar."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar() -> Iterator[Bar]:
    """A live bar on stderr."""
    from rich import progress as rich_progress
    from rich.console import Console

    with rich_progress.Progress(
        rich_progress.MofNCompleteColumn(),
        rich_progress.BarColumn(bar_width=20),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[failed]}"),
        rich_progress.TextColumn("{task.fields[at_work]}", style="dim"),
        console=Console(stderr=True),
        transient=True,
    ) as live:
        yield Bar(live, live.add_task("parity", total=None, failed="", at_work="starting"))


class CaseLines(calibrator.Watcher):
    """A calibration's cases as numbered lines on stderr."""

    def __init__(self, total: int) -> None:
        self.total, self.count = total, 0

    def done(self, case: Case, passed: int, failed: int) -> None:
        """Print the case."""
        self.count += 1
        verdict = f"{passed} pass" + (f", {failed} fail" if failed else "")
        click.echo(f"[{self.count}/{self.total}] {case.label()}: {verdict}", err=True)


class CaseBar(calibrator.Watcher):
    """A calibration's cases as a bar, with the backend that is at work."""

    def __init__(self, bar: LiveBar) -> None:
        self.bar = bar
        self.at_work: tuple[str | None, Case] | None = None
        self.counts: Counter[str] = Counter()

    def working(self, backend: str | None, case: Case) -> None:
        """Show it under the bar."""
        if (backend, case) != self.at_work:
            self.at_work = (backend, case)
            self.bar.working(backend, case)

    def done(self, case: Case, passed: int, failed: int) -> None:
        """Advance."""
        self.counts.update(ok=passed, wrong_result=failed)
        self.bar.bar.update(self.bar.task, advance=1, counts=+self.counts)


@contextmanager
def calibrating(total: int) -> Iterator[calibrator.Watcher]:
    """The display of a calibration that suits stderr."""
    if not sys.stderr.isatty():
        yield CaseLines(total)
        return
    from rich.console import Console

    with live_bar(Console(stderr=True), total) as bar:
        yield CaseBar(bar)
