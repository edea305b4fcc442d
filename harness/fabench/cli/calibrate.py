"""`fabench calibrate`: what this device is known to do, kept beside its results for later runs to be judged by."""

from __future__ import annotations

from pathlib import Path

import click

from fabench.errors import UsageError


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--noise", is_flag=True, help="How much the same rows move between sessions; `fabench diff` reads it.")
@click.option("--suite", default="smoke", show_default=True, help="The suite a session runs, where no FILE is named.")
@click.option("--rounds", type=click.IntRange(2), default=10, show_default=True, help="Rounds of a session.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option("--where", metavar="COND", help="Only these rows of the suite, e.g. 'd=128,N>=4096'.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: results/<gpu>/calibration-*.json]"
)
def command(
    files: tuple[str, ...], noise: bool, suite: str, rounds: int, device: str, where: str | None, out: Path | None
) -> None:
    """Measure what is asked for and add it to this device's calibration.

    --noise adds one session: a run of SUITE here and now, or each FILE, a result file of one session that is there
    already. Six sessions that a boot or an hour lies between make a calibration; see docs/diff.md.
    """
    from fabench.cli.calibrate_noise import calibrate_noise

    if not noise:
        raise UsageError("what to calibrate must be said: '--noise'")
    calibrate_noise(files, suite=suite, rounds=rounds, device=device, where=where, out=out)
