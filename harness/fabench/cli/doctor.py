"""`fabench doctor`: what this machine has, what it lacks for which part of fabench, and what to install."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

from fabench.cli.stdout import say


@click.command()
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(format_: str) -> None:
    """Say what is installed here, what is missing, and what to install.

    Looks at the driver, torch, CUDA, cuDNN, NVML, the compilers, the profilers and every backend's library. Exits
    with 0, for what is missing only makes some backends unavailable, and with 1 if torch cannot be imported.
    """
    from fabench import probe
    from fabench.checkup import Finding

    findings = [Finding(**finding) for finding in probe.call({"ask": "doctor"})["findings"]]
    if format_ == "json":
        import json

        say(json.dumps([finding.to_json() for finding in findings], indent=2))
        return
    width = max(40, shutil.get_terminal_size().columns)
    part = max(len(finding.part) for finding in findings)
    marks = {"ok": "ok", "missing": "missing", "not needed": "-"}
    for finding in findings:
        head = f"{finding.part:{part}}  {marks[finding.state]:7}  "
        indent = " " * (len(head) if len(head) < width // 2 else 4)
        say(textwrap.fill(finding.found, width, initial_indent=head, subsequent_indent=indent))
        if finding.state == "missing" and finding.remedy:
            for line in (f"for: {finding.serves}", f"do:  {finding.remedy}"):
                say(textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + "     "))
    missing = sum(finding.state == "missing" for finding in findings)
    say()
    if not any(finding.part == "device" for finding in findings):
        say(f"{missing} missing; nothing can be measured without torch.")
        sys.exit(1)
    say("Nothing is missing." if not missing else f"{missing} missing; everything else works without them.")
