"""`fabench run`: measure a suite."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabench.cli import INTERRUPTED
from fabench.cli.seconds import Seconds
from fabench.cli.stdout import say
from fabench.cli.words import parse_words
from fabench.errors import UsageError
from fabench.names import FAILED, FORMATS, REGIMES, SKIPPED, STATUSES

if TYPE_CHECKING:
    from fabench.resultfile import ResultFile


@click.command()
@click.argument("suite")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Result file. [default: results/<device>/<suite>-<time>.jsonl]"
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option("--backend", "backends", multiple=True, metavar="GLOB", help="Instead of the suite's list. Repeatable.")
@click.option(
    "--backend-file", "backend_files", multiple=True, metavar="FILE.py[:fn]", help="Add a kernel of your own."
)
@click.option("--where", metavar="COND", help="Only these rows, e.g. 'd=128,N>=4096,backend=sdpa-*'.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Fresh worker processes; 10 to gate on the result. [default: the suite's]",
)
@click.option(
    "--regime",
    type=click.Choice([r for r in REGIMES if r != "cpu"]),
    help="How rows are timed; the shortest are replayed as graphs in any case. [default: the suite's]",
)
@click.option(
    "--seconds",
    type=Seconds(),
    help="Timed work after which a row stops at its next number of samples. [default: the suite's]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds a row's own calls may take.",
)
@click.option(
    "--prepare-timeout",
    "prepare_s",
    type=Seconds(),
    default=300.0,
    show_default=True,
    help="Seconds to build and compile.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="FILE", help="Continue FILE, trying again what failed."
)
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts, from 1.")
@click.option("--row-id", "row_ids", multiple=True, metavar="ID", help="Only this row. Repeatable.")
@click.option("--rows", type=click.Path(path_type=Path), metavar="FILE", help="Only the rows that FILE lists.")
@click.option("--like", type=click.Path(path_type=Path), metavar="OLD", help="Regime, K and n of each row as in OLD.")
@click.option("--ab", nargs=2, metavar="A B", help="Two sides in turns; each NAME=VALUE ..., a venv or FILE.py:fn.")
@click.option("--in-process", is_flag=True, help="No worker process: for ncu, compute-sanitizer, cuda-gdb.")
@click.option(
    "--compile-ahead",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="First compile with N processes, for backends that keep it on disk.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--no-check", is_flag=True, help="Skip correctness; every row is flagged unchecked.")
@click.option("--try-oom", is_flag=True, help="Launch cases whose predicted memory exceeds what is free.")
@click.option(
    "--fail-on", default=",".join(FAILED), show_default=True, help="Statuses that make the exit code 1, or none."
)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), default="simple", show_default=True, help="Of the final table."
)
@click.option("--wait", is_flag=True, help="Wait for another run on the same GPU to end.")
def command(
    suite: str,
    row_ids: tuple[str, ...],
    rows: Path | None,
    ab: tuple[str, str] | None,
    shard: str | None,
    no_check: bool,
    dry_run: bool,
    fail_on: str,
    format_: str,
    **options: object,
) -> None:
    """Run SUITE, a YAML file or the name of a shipped suite, and print its table.

    Exit code 0: no row has a status of --fail-on (one that was skipped, or ran out of memory, has none unless it is
    named there); 1: a row has; 2: usage, or nothing could run; 130: interrupted.
    """
    from fabench import resultfile, runner
    from fabench.ab import parse_pair
    from fabench.interrupts import interrupts
    from fabench.request import Request, prepare, prepare_ab
    from fabench.views.dryrun import render
    from fabench.views.show import show, terminal_width

    if ab and options["resume"]:
        raise UsageError("--resume continues one file, got --ab too; run the A/B again")

    if options["in_process"] and options["compile_ahead"]:
        raise UsageError("--compile-ahead starts processes, got --in-process too; leave one of them out")

    if options["resume"] and options["out"]:
        raise UsageError("--resume writes into the file that it continues, got --out too; leave one of them out")
    failing = parse_statuses(fail_on)
    request = Request(
        suite=suite,
        row_ids=frozenset([*row_ids, *(() if rows is None else read_row_ids(rows))]),
        shard=None if shard is None else parse_shard(shard),
        check=not no_check,
        argv=("fabench", *sys.argv[1:]),
        **options,  # type: ignore[arg-type]  # click has checked them
    )
    with interrupts():
        sides = prepare_ab(request, *parse_pair(*ab)) if ab else [prepare(request)]
        if dry_run:
            say(render(sides[0].suite, runner.remaining(sides[0]).plan, terminal_width()))
            return
        outcomes = runner.execute(sides, tell)
    results = [resultfile.read(outcome.path, allow_partial=True) for outcome in outcomes]
    say(show(results, format_, width=terminal_width()))
    tell("\n" + "\n".join(result.path for result in results))
    if any(outcome.interrupted for outcome in outcomes):
        sys.exit(INTERRUPTED)
    sys.exit(max(exit_code(result, failing) for result in results))


def tell(text: str) -> None:
    """Say it on stderr. That nobody can read it there (a full disk, a closed pipe) changes nothing about the run."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def exit_code(result: ResultFile, failing: frozenset[str]) -> int:
    """2 if every row of the file was skipped; 1 if one has a failing status; else 0."""
    statuses = {row.status for row in result.rows}
    if statuses and statuses <= set(SKIPPED):
        tell("Error: no row could run here; see the reasons above")
        return 2
    return int(bool(statuses & failing))


def read_row_ids(path: Path) -> list[str]:
    """The row ids of a file, one a line; what follows a '#' is for people. Raises UsageError if there are none."""
    from fabench.input_files import read_small

    try:
        text = read_small(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"'--rows' must be a file of row ids, cannot read '{path}': {why}") from None
    ids = [words[0] for line in text.splitlines() if (words := line.partition("#")[0].split())]
    if not ids:
        raise UsageError(f"--rows must list at least one row id, got none in '{path}'")
    return ids


def parse_statuses(text: str) -> frozenset[str]:
    """The statuses of --fail-on; raises UsageError on an unknown one."""
    return parse_words("--fail-on", text, "statuses", STATUSES)


def parse_shard(text: str) -> tuple[int, int]:
    """(i, n) of 'i/n'; raises UsageError unless 1 <= i <= n."""
    first, slash, last = text.partition("/")
    if not (slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UsageError(f"--shard must be I/N with 1 <= I <= N, got '{text}'")
    return int(first), int(last)
