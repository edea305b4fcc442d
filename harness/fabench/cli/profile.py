"""`fabench profile`: what a call's kernels did, beside the model."""

from __future__ import annotations

import json

import click

from fabench.errors import BackendError


@click.command()
@click.option(
    "--case",
    "case_text",
    required=True,
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
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds a backend may take.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(
    case_text: str,
    backends: tuple[str, ...],
    backend_files: tuple[str, ...],
    device: str,
    timeout_s: float,
    style: str,
) -> None:
    """Profile one call of each backend: DRAM bytes, L2 hits, tensor utilization, occupancy, kernel by kernel.

    Counters are Nsight Compute's, if ncu is here and may read them; else torch's profiler gives kernels and times, and
    the reason is printed. A backend that refuses the case is said so and left out.
    """
    from fabench import gpus, probe
    from fabench.case_text import parse
    from fabench.explain import explain
    from fabench.profiling.session import profile
    from fabench.tiling import Tiling
    from fabench.views.profile import render

    case = parse(case_text)
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
    profiles = [profile(case, name, asked.device, backend_files, timeout_s=timeout_s) for name in takers]
    tilings = [Tiling.from_json(data) for data in probe.tilings([case], asked.device)[case.id]]
    explanation = explain(case, gpus.here(asked.device), tilings)
    if style == "json":
        told = {"profiles": [found.to_json() for found in profiles], "model": explanation.to_json()}
        click.echo(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        click.echo(render(profiles, explanation))
