"""`fabench merge`: join shards and rounds."""

from __future__ import annotations

from pathlib import Path

import click

from fabench.cli.stdout import say


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file to write.")
@click.option(
    "--renumber", is_flag=True, help="Rounds of each FILE follow those of the one before: sessions as rounds."
)
def command(files: tuple[str, ...], out: Path, renumber: bool) -> None:
    """Join result files of one suite: the shards of a run, or its rounds.

    Every row must be in one file alone: mixed suites, mixed sides of an --ab run and duplicate rows are refused. To
    join sessions that each began at round 0, use --renumber.
    """
    from fabench.cli.targets import check_regular
    from fabench.merge import merge
    from fabench.text import counted

    check_regular(map(Path, files))
    done = merge(files, out, renumber=renumber)
    state = "" if done.complete else "; not complete: a run that was joined had been stopped"
    say(f"{done.path}: {counted(done.rows, 'row')} of {done.files} files, {counted(done.rounds, 'round')}{state}")
