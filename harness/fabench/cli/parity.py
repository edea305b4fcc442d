"""`fabench parity`: prove or break a kernel, name its bug, hand back the smallest failing case."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabench.cli.seconds import Seconds
from fabench.cli.stdout import say
from fabench.cli.targets import check_targets, source
from fabench.errors import BackendError, UsageError
from fabench.interrupts import interrupts
from fabench.output_files import check_folder, write_text

if TYPE_CHECKING:
    from fabench.parity.runner import Kernel, Options, Watcher
    from fabench.parity.verdict import Verdict


@click.command()
@click.argument("target")
@click.option("--profile", type=click.Choice(["quick", "full", "stress"]), default="quick", show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option("--dtype", "dtypes", metavar="LIST", help="Only these, e.g. bf16,fp16.")
@click.option("--where", metavar="COND", help="Only these cases, e.g. 'causal=true,d=128'.")
@click.option("--probe", "probes", metavar="LIST", help="Only these probes, e.g. mask,addr; see docs/parity.md.")
@click.option("--inputs", type=click.Path(dir_okay=False), metavar="FILE.pt", help="Real tensors: q, k, v [, dO ...].")
@click.option("--forward-only", is_flag=True, help="No gradients.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that fails.")
@click.option("--budget", metavar="TIME", help="Stop after e.g. 50s or 8m (compiling apart).")
@click.option("--timeout", "timeout_s", type=Seconds(), help="Seconds one call may take. [default: 30, on a GPU 120]")
@click.option("--big", is_flag=True, help="Also N up to 131072 and offsets past 2^31 (minutes, gigabytes).")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--json", "json_", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JSON.")
@click.option(
    "--repro", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write scripts and maps."
)
@click.option("--explain", is_flag=True, help="Show the evidence behind each name.")
def command(
    target: str,
    dtypes: str | None,
    probes: str | None,
    where: str | None,
    budget: str | None,
    junit: Path | None,
    json_: Path | None,
    explain: bool,
    **given: Any,
) -> None:
    """Check TARGET: my_kernel.py:attention, or a registered backend such as sdpa-flash.

    Exit code 0: everything passed; 1: something failed, crashed or hung; 2: usage, import error, or nothing ran;
    130: interrupted.
    """
    from fabench.parity import junit as junit_xml
    from fabench.parity import runner
    from fabench.parity.battery import Request
    from fabench.parity.report import render
    from fabench.views.show import terminal_width

    request = Request(
        profile=given["profile"],
        dtypes=parse_dtypes(dtypes),
        probes=parse_probes(probes),
        where=parse_where(where),
        forward_only=given["forward_only"],
        big=given["big"],
    )
    options = runner.Options(
        target,
        given["device"],
        request,
        given["inputs"],
        given["fail_fast"],
        parse_budget(budget),
        given["repro"],
        given["timeout_s"],
    )
    inputs = [source(target), *([Path(given["inputs"])] if given["inputs"] else [])]
    check_targets([path for path in (junit, json_) if path is not None], inputs)
    if given["repro"] is not None:
        check_folder(given["repro"])
    verdicts = []
    with interrupts():
        for kernel in load(options):
            with watching() as watcher:
                verdict = runner.run(options, kernel, watcher)
            say(render(verdict, explain=explain, width=terminal_width()))
            verdicts.append(verdict)
            if verdict.left.interrupted:
                break
    failures = [
        write(junit, lambda: junit_xml.as_junit(verdicts)),
        write(json_, lambda: as_json(verdicts)),
    ]
    if problems := [f for f in failures if f]:
        raise UsageError("; ".join(problems))
    if verdicts[-1].left.interrupted:
        raise KeyboardInterrupt
    codes = [v.exit_code for v in verdicts]
    if 2 in codes:
        click.echo(f"Error: no case ran: {why_nothing([v for v in verdicts if v.exit_code == 2])}", err=True)
    sys.exit(1 if 1 in codes else max(codes))


def why_nothing(verdicts: Sequence[Verdict]) -> str:
    """Why no case of these ran."""
    endings = {r.ending for v in verdicts for r in v.results}
    if "oom" in endings:
        return "memory ran out in every one, with the reasons above"
    cut = [v.left.why for v in verdicts if v.left.why]
    if cut and "unsupported" in endings:
        return f"the kernel refused those that were tried, with the reasons above, and {cut[0]}"
    return f"{cut[0]}; give it more" if cut else "the kernel refused every one, with the reasons above"


def as_json(verdicts: Sequence[Verdict]) -> str:
    """The text of --json: one object a kernel."""
    return json.dumps([v.to_json() for v in verdicts], indent=1, allow_nan=False) + "\n"


def load(options: Options) -> list[Kernel]:
    """The kernels of the target; where the user's file cannot be loaded, its own traceback comes first."""
    from fabench.parity import runner
    from fabench.parity.load_error import own_traceback

    try:
        return runner.kernels(options, lambda text: click.echo(f"Note: {text}", err=True))
    except BackendError as error:
        file = options.target.rpartition(":")[0] or options.target
        if "cannot be loaded" in str(error) and (traceback := own_traceback(file)):
            click.echo(traceback, err=True)
        raise


def parse_dtypes(text: str | None) -> tuple[str, ...]:
    """The dtypes of --dtype; raises UsageError on an unknown one."""
    from fabench.dtypes import DTYPES
    from fabench.text import did_you_mean

    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        if name not in DTYPES:
            raise UsageError(
                f"--dtype must list dtypes of {', '.join(DTYPES)}, got '{name}'{did_you_mean(name, DTYPES)}"
            )
    return names


def parse_probes(text: str | None) -> tuple[Any, ...]:
    """The probes of --probe; raises UsageError on an unknown one."""
    from fabench.parity.trial import PROBES
    from fabench.text import did_you_mean

    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        if name not in PROBES:
            raise UsageError(
                f"--probe must list probes of {', '.join(PROBES)}, got '{name}'{did_you_mean(name, PROBES)}"
            )
    return names


def parse_where(text: str | None) -> Any:
    """The condition of --where, None without one."""
    from fabench.where import Condition

    return None if text is None else Condition.parse(text)


def parse_budget(text: str | None) -> float | None:
    """Seconds of '50s', '8m' or '90'; raises UsageError on anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([sm]?)\s*", text)
    if match is None or not float(match[1]):
        raise UsageError(f"--budget must be a time such as 50s or 8m, got '{text}'")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def write(path: Path | None, text: Callable[[], str]) -> str | None:
    """Write a file; what went wrong, in one sentence, so that the other one is written all the same."""
    if path is None:
        return None
    try:
        write_text(path, text())
    except UsageError as error:
        return f"{error}; the report above is all there is of it"
    return None


@contextmanager
def watching() -> Iterator[Watcher]:
    """A progress bar on a terminal, elsewhere a line for each failure."""
    from fabench.parity.progress import Lines, bar

    if not sys.stderr.isatty():
        yield Lines()
        return
    with bar() as live:
        yield live
