"""`fabench report`: result files as one page."""

from __future__ import annotations

from pathlib import Path

import click

from fabench.cli.stdout import say
from fabench.errors import UsageError
from fabench.input_files import given_once
from fabench.output_files import write_text


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The page to write; it needs nothing beside it.",
)
@click.option("--where", metavar="COND", help="Only rows that match, e.g. 'd=128,backend=sdpa-*'.")
@click.option("--baseline", metavar="BACKEND", help="What speed-ups are against. [default: the suite's baseline]")
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    help="Beside ours, the same problems of another file: of published/fa3_h100, say, or of an older run.",
)
@click.option("--allow-partial", is_flag=True, help="Report what is there of a file that was cut off.")
def command(
    files: tuple[str, ...],
    out: Path,
    where: str | None,
    baseline: str | None,
    against: tuple[str, ...],
    allow_partial: bool,
) -> None:
    """Write one self-contained HTML page: verdicts, environment, plots, tables, doubts."""
    from fabench.cli.targets import check_targets
    from fabench.resultfile import read
    from fabench.views.published import find, is_published, read_against
    from fabench.views.report import render
    from fabench.views.show import placed
    from fabench.where import Condition

    sources = [find(name) for name in against]
    check_targets([out], [*map(Path, files), *sources])
    given_once(files)
    results = [read(file, allow_partial=allow_partial, samples=False) for file in files]
    others = read_against(against, allow_partial)
    for warning in (text for result in [*results, *others] for text in result.warnings):
        click.echo(f"Warning: {warning}", err=True)
    outcomes = placed(results, None if where is None else Condition.parse(where), baseline, others)
    if not outcomes and not (where is None and any(map(is_published, results))):
        raise UsageError("no row is left to report; widen --where, or look into the file with 'fabench validate'")
    page = render(results, outcomes, others)
    write_text(out, page)
    say(str(out))
