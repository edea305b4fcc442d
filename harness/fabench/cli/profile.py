"""`fabench profile`: what a call's kernels did, beside the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabench.cli.seconds import Seconds
from fabench.cli.stdout import say
from fabench.errors import BackendError, UsageError

if TYPE_CHECKING:
    from fabench.profiling.stored import StoredProfile


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--case",
    "case_text",
    metavar="KEYS",
    help="The problem: 'N=8192,d=128,dtype=bf16,batch=1,heads=32,causal=false'.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="GLOB",
    help="Backends, by name or glob; commas or repeated. [default: all that take the case]",
)
@click.option(
    "--backend-file", "backend_files", multiple=True, metavar="FILE.py[:fn]", help="Add a kernel of your own."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option(
    "--timeout", "timeout_s", type=Seconds(), default=300.0, show_default=True, help="Seconds a backend may take."
)
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Keep it in a file too.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(
    file: Path | None,
    case_text: str | None,
    backends: tuple[str, ...],
    backend_files: tuple[str, ...],
    device: str,
    timeout_s: float,
    out: Path | None,
    style: str,
) -> None:
    """Profile one call of each backend: DRAM bytes, L2 hits, tensor utilization, occupancy, kernel by kernel.

    Counters are Nsight Compute's, if ncu is here and may read them; else torch's profiler gives kernels and times, and
    the reason is printed. A backend that refuses the case is said so and left out. Given a FILE that --out wrote,
    prints it, and runs nothing.
    """
    from fabench.cli.targets import check_targets, source
    from fabench.profiling import stored
    from fabench.views.profile import render
    from fabench.views.show import terminal_width

    if (file is None) == (case_text is None):
        raise UsageError("'profile' must get --case 'N=8192,d=128' or a file that --out wrote, one of them")
    if file is not None and (backends or backend_files or out):
        raise UsageError(f"'{file}' is printed as it is; leave out --backend, --backend-file and --out, or give --case")
    if file is not None:
        found = stored.read(file)
    else:
        if out is not None:
            check_targets([out], list(map(source, backend_files)))
        found = _profiled(str(case_text), backends, backend_files, device, timeout_s)
    if out is not None:
        stored.write(out, found)
        click.echo(str(out), err=True)
    if style == "json":
        told = {"profiles": [one.to_json() for one in found.profiles], "model": found.explanation.to_json()}
        say(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        if file is not None:
            say(found.origin)
        say(render(found.profiles, found.explanation, terminal_width()))


def _profiled(
    case_text: str, backends: tuple[str, ...], backend_files: tuple[str, ...], device: str, timeout_s: float
) -> StoredProfile:
    from fabench import gpus, probe
    from fabench.case_text import parse
    from fabench.profiling.session import profile_all
    from fabench.profiling.stored import StoredProfile
    from fabench.runrecords import harness, now
    from fabench.tiling import Tiling

    case = parse(case_text)
    started = now()
    patterns = [name.strip() for given in backends for name in given.split(",") if name.strip()] or None
    asked = probe.ask(device, backend_files, [case], patterns)
    takers = []
    for name, report in asked.backends.items():
        reasons = [report.unavailable] if report.unavailable else asked.reasons[case.id, name]
        if reasons:
            click.echo(f"{name}: left out, {'; '.join(reasons)}", err=True)
        else:
            takers.append(name)
    if not takers:
        raise BackendError(f"no backend takes '{case.label()}' here; see the reasons above")
    tilings = probe.tilings([case], asked.device)[case.id]
    return StoredProfile(
        started=started,
        argv=["fabench", *sys.argv[1:]],
        harness=harness(),
        identity=asked.identity,
        software=asked.software,
        case=case.key,
        gpu=gpus.here(asked.device),
        tilings=tuple(map(Tiling.from_json, tilings)),
        profiles=tuple(profile_all(case, takers, asked.device, backend_files, timeout_s=timeout_s)),
    )
