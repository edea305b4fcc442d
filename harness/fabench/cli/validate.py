"""`fabench validate`: is a result file whole, and does it hold together?"""

from __future__ import annotations

import sys
from collections import Counter

import click

from fabench.cli.stdout import say

SHOWN = 20
"""Problems printed of one file; the rest are counted."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--allow-partial", is_flag=True, help="Accept a file that was cut off.")
def command(files: tuple[str, ...], allow_partial: bool) -> None:
    """Check result files: the schema of every line, the file's own rules, and numbers that must agree.

    Prints a line for each sound file. Exit code 0 if all are sound, else 2, with file:line: sentence for what is not.
    """
    from fabench.errors import RecordError
    from fabench.resultfile import read
    from fabench.resultfile.consistency import problems
    from fabench.text import counted

    sound = True
    for file in files:
        try:
            result = read(file, allow_partial=allow_partial)
        except RecordError as error:
            click.echo(f"Error: {error}", err=True)
            sound = False
            continue
        for warning in result.warnings:
            click.echo(f"Warning: {warning}", err=True)
        if found := problems(result):
            sound = False
            more = [f"and {counted(len(found) - SHOWN, 'more problem')}"] if len(found) > SHOWN else []
            for text in [*found[:SHOWN], *more]:
                click.echo(f"Error: {file}: {text}", err=True)
            continue
        counts = Counter(row.status for row in result.rows)
        listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        state = "complete" if result.complete else "a part of its run"
        say(f"{file}: sound, {state}: {counted(len(result.rows), 'row')}" + (f" ({listed})" if listed else ""))
    sys.exit(0 if sound else 2)
