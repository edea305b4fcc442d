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
        beside = len(head) < width // 2 and len(head) + max(map(len, finding.found.split()), default=0) <= width
        indent = " " * (len(head) if beside else 4)
        if beside or len(head + finding.found) <= width:
            say(filled(finding.found, width, head, indent))
        else:
            say(head.rstrip())
            say(filled(finding.found, width, indent, indent))
        if finding.state == "missing" and finding.remedy:
            for line in (f"for: {finding.serves}", f"do:  {finding.remedy}"):
                say(filled(line, width, indent, indent + "     "))
    missing = sum(finding.state == "missing" for finding in findings)
    say()
    if not any(finding.part == "device" for finding in findings):
        say(filled(f"{missing} missing; nothing can be measured without torch.", width, "", ""))
        sys.exit(1)
    without = f"{missing} missing; everything else works without {'it' if missing == 1 else 'them'}."
    say(filled(without if missing else "Nothing is missing.", width, "", ""))


def filled(text: str, width: int, first: str, later: str) -> str:
    """The text broken at blanks into lines of `width`: a word that is looked up or pasted stays whole."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
