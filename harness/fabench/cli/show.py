"""`fabench show`: result files as tables."""

from __future__ import annotations

import click

from fabench.cli.stdout import say
from fabench.errors import UsageError
from fabench.input_files import given_once
from fabench.names import FORMATS


def _epilog() -> str:
    """The values and axes, read from where they are defined."""
    from fabench.views.axes import AXES
    from fabench.views.values import VALUES

    values = "\n".join(f"  {value.name:<10} {value.heading}: {value.meaning}" for value in VALUES.values())
    return f"\b\nValues:\n{values}\n\n\b\nAxes: {', '.join(AXES)}"


class _Command(click.Command):
    """Writes the list of values and axes under the options, without importing them for `fabench --help`."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.epilog = _epilog()
        super().format_epilog(ctx, formatter)


@click.command(cls=_Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--row", default="", help="Axes of the rows, comma-separated. [default: what varies among the problems]")
@click.option("--col", default="", help="Axes of the columns; 'value' gives each value a column. [default: backend]")
@click.option("--value", "values", default="", help="What to show, comma-separated. [default: tflops]")
@click.option("--where", metavar="COND", help="Only rows that match, e.g. 'd=128,N>=4096,backend=sdpa-*'.")
@click.option("--sort", help="An axis of the rows or a column's heading; with '-' in front largest first.")
@click.option("--baseline", metavar="BACKEND", help="What speed-ups are against. [default: the suite's baseline]")
@click.option(
    "--interval", is_flag=True, help="Print the half-width of the median time's 95 % interval behind each number."
)
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    help="Beside ours, the same problems of another file: of published/fa3_h100, say, or of an older run.",
)
@click.option(
    "--format",
    "style",
    default="simple",
    show_default=True,
    type=click.Choice(FORMATS),
)
@click.option("--allow-partial", is_flag=True, help="Show what is there of a file that was cut off.")
def command(
    files: tuple[str, ...],
    row: str,
    col: str,
    values: str,
    where: str | None,
    sort: str | None,
    baseline: str | None,
    interval: bool,
    against: tuple[str, ...],
    style: str,
    allow_partial: bool,
) -> None:
    """Print tables of one or more result files.

    Every backend is a column and every problem a row, unless --row and --col say otherwise. Flags and failures are
    footnotes. csv and json have one record a row, in base units, and hold every value unless some are named.
    """  # fmt: skip
    from fabench.resultfile import read
    from fabench.views.axes import axis_names
    from fabench.views.published import read_against
    from fabench.views.show import show, terminal_width
    from fabench.views.tables import Layout
    from fabench.views.values import value_named
    from fabench.where import Condition

    shaped = [f"'--{name}'" for name, given in {"row": row, "col": col, "sort": sort, "interval": interval}.items()
              if given]  # fmt: skip
    if style in ("csv", "json") and shaped:
        raise UsageError(f"{', '.join(shaped)} shapes a table, and {style} has one record a row; leave it out")
    names = tuple(value_named(name.strip()).name for name in values.split(",") if name.strip())
    if not names and style not in ("csv", "json"):
        names = ("tflops",)
    layout = Layout(axis_names(row, "--row"), axis_names(col, "--col", "value"), names, sort, interval)
    condition = None if where is None else Condition.parse(where)
    given_once(files)
    results = [read(file, allow_partial=allow_partial, samples=False) for file in files]
    others = read_against(against, allow_partial)
    for warning in (text for result in [*results, *others] for text in result.warnings):
        click.echo(f"Warning: {warning}", err=True)
    say(show(results, style, layout, where=condition, baseline=baseline, against=others, width=terminal_width()))
