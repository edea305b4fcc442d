"""`fabench list`: which backends, suites and devices there are, and why a backend cannot run here."""

from __future__ import annotations

import json
import shutil

import click

from fabench.cli.stdout import say

FORMAT = click.option(
    "--format",
    "style",
    type=click.Choice(["simple", "github", "json"]),
    default="simple",
    show_default=True,
    help="simple fits the terminal.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List backends, suites and devices; all three if none is named."""
    if context.invoked_subcommand is None:
        for index, part in enumerate((devices, suites, backends)):
            if index:
                say()
            context.invoke(part)


@command.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option(
    "--backend-file", "backend_files", multiple=True, metavar="FILE.py[:fn]", help="Add a kernel of your own."
)
@FORMAT
@click.argument("patterns", nargs=-1, metavar="[GLOB]...")
def backends(
    device: str = "auto", backend_files: tuple[str, ...] = (), style: str = "simple", patterns: tuple[str, ...] = ()
) -> None:
    """The capability matrix, and why each backend that cannot run here cannot."""
    from fabench import probe
    from fabench.views import capabilities

    answer = probe.ask(device, backend_files, backends=patterns or None)
    if style == "json":
        reports = {
            name: {"facts": report.facts.to_json(), "unavailable": report.unavailable, "file": report.file}
            for name, report in answer.backends.items()
        }
        say(json.dumps({"device": answer.device.to_json(), "backends": reports}, indent=2))
        return
    say(capabilities.backends(answer, width(), style))


@command.command()
@FORMAT
def suites(style: str = "simple") -> None:
    """The suites that come with fabench: `fabench run NAME`."""
    from fabench import suite
    from fabench.views import capabilities

    loaded = capabilities.load_suites(suite.shipped())
    if style == "json":
        listed = {n: {"description": s.description, "cases": len(s.cases), "hash": s.hash} for n, s in loaded.items()}
        say(json.dumps(listed, indent=2))
        return
    say(capabilities.suites(loaded, width(), style))


@command.command(name="devices")
@FORMAT
def devices(style: str = "simple") -> None:
    """The devices that `--device` can name."""
    from fabench import probe
    from fabench.views import capabilities

    found = probe.devices()
    if style == "json":
        say(json.dumps([device.to_json() for device in found], indent=2))
        return
    say(capabilities.devices(found, width(), style))


def width() -> int:
    """Columns of the terminal; a pipe gets room for the whole table."""
    return shutil.get_terminal_size((160, 24)).columns
