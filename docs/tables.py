"""Fills the blocks of README.md and docs/*.md that show what a command prints, from the files in results/.

A block is

    <!-- $ fabench show results/nvidia-h200/smoke.jsonl --format github -->
    ... what the command printed ...
    <!-- end -->

`python docs/tables.py` rewrites every block; with --check it writes nothing, names the blocks that have drifted and
exits with 1. Output that is not Markdown itself is fenced, with the command above it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from fabench.cli import main

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?P<open><!-- \$ (?P<command>fabench [^\n]*?) -->\n)(?P<body>.*?)(?P<close><!-- end -->)", re.DOTALL
)


def pages() -> list[Path]:
    """The Markdown files that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def printed(command: str) -> str:
    """What a command prints on stdout, as a block's body. Raises RuntimeError if it fails."""
    result = CliRunner().invoke(main, shlex.split(command)[1:], env={"COLUMNS": "120"})
    if result.exit_code not in (0, 1) or not result.stdout.strip():
        raise RuntimeError(f"'{command}' must print something, exited with {result.exit_code}: {result.stderr}")
    if "--format github" in command:
        return f"{result.stdout.strip()}\n"
    return f"```console\n$ {command}\n{result.stdout.rstrip()}\n```\n"


def filled(text: str) -> str:
    """The page with every block as its command prints it now."""
    return BLOCK.sub(lambda m: f"{m['open']}{printed(m['command'])}{m['close']}", text)


def drifted() -> Iterator[str]:
    """Each block that is not what its command prints, as 'page: command'."""
    for page in pages():
        for match in BLOCK.finditer(page.read_text()):
            if match["body"] != printed(match["command"]):
                yield f"{page.relative_to(ROOT)}: {match['command']}"


def run(arguments: list[str]) -> int:
    """Rewrite, or with --check compare."""
    if arguments == ["--check"]:
        stale = list(drifted())
        for block in stale:
            sys.stdout.write(f"{block}: not what the command prints; run make docs-tables\n")
        return int(bool(stale))
    for page in pages():
        before = page.read_text()
        if (after := filled(before)) != before:
            page.write_text(after)
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    import os

    os.chdir(ROOT)
    sys.exit(run(sys.argv[1:]))
