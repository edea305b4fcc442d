"""Fills the blocks of README.md and docs/*.md that show what a command prints, from the files in results/.

A block is

    <!-- $ fabench show results/nvidia-h200/smoke.jsonl --format github -->
    ... what the command printed ...
    <!-- end -->

`python docs/tables.py` rewrites every block; with --check it writes nothing, names the blocks that have drifted and
exits with 1. Output that is not Markdown itself is fenced, with the command above it. A command may end in `| tail -n
9`, as a reader would type it. A picture, `fabench plot ... -o docs/plots/NAME.svg`, is drawn, and the block shows it;
one drawn by another version of Matplotlib is taken as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
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


def said(arguments: list[str]) -> str:
    """What a command prints on stdout. Raises RuntimeError if it fails; a diff that is undecided (3) does not."""
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "120"})
    if result.exit_code not in (0, 1, 3) or not result.stdout.strip():
        asked = shlex.join(["fabench", *arguments])
        raise RuntimeError(f"'{asked}' must print something, exited with {result.exit_code}: {result.stderr}")
    return result.stdout


def printed(command: str, page: Path) -> str:
    """A block's body: what its command prints, or the picture that it draws. Raises RuntimeError if it fails."""
    if place := picture(command):
        return f"![{command}]({os.path.relpath(place, page.parent)})\n"
    asked, _, last = command.partition(" | tail -n ")
    lines = said(shlex.split(asked)[1:]).rstrip().splitlines()
    shown = "\n".join(lines[-int(last) :] if last else lines)
    if "--format github" in command:
        return f"{shown.strip()}\n"
    return f"```console\n$ {command}\n{shown}\n```\n"


def picture(command: str) -> Path | None:
    """The file that a command draws, of a `fabench plot`."""
    _, name, *arguments = shlex.split(command)
    return ROOT / arguments[arguments.index("-o") + 1] if name == "plot" else None


def drawn(command: str) -> bytes:
    """The picture as the command draws it now."""
    place = picture(command)
    assert place is not None
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / place.name
        arguments = shlex.split(command)[1:]
        arguments[arguments.index("-o") + 1] = str(new)
        said(arguments)
        return new.read_bytes()


def is_old(command: str) -> bool:
    """Whether the picture is missing, or another than the same Matplotlib draws now."""
    place = picture(command)
    if place is None or not place.exists():
        return place is not None
    now, then = drawn(command), place.read_bytes()
    artist = re.compile(rb"Matplotlib v[\d.]+")
    return now != then and artist.findall(now) == artist.findall(then)


def filled(page: Path) -> str:
    """The page with every block as its command prints it now."""
    return BLOCK.sub(lambda m: f"{m['open']}{printed(m['command'], page)}{m['close']}", page.read_text())


def drifted() -> Iterator[str]:
    """Each block that is not what its command prints, as 'page: command'."""
    for page in pages():
        for match in BLOCK.finditer(page.read_text()):
            if match["body"] != printed(match["command"], page) or is_old(match["command"]):
                yield f"{page.relative_to(ROOT)}: {match['command']}"


def run(arguments: list[str]) -> int:
    """Rewrite, or with --check compare."""
    if arguments == ["--check"]:
        stale = list(drifted())
        for block in stale:
            sys.stdout.write(f"{block}: not what the command prints; run make docs-tables\n")
        return int(bool(stale))
    for page in pages():
        for match in BLOCK.finditer(before := page.read_text()):
            place = picture(match["command"])
            if place is not None and is_old(match["command"]):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(drawn(match["command"]))
                sys.stdout.write(f"wrote {place.relative_to(ROOT)}\n")
        if (after := filled(page)) != before:
            page.write_text(after)
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(run(sys.argv[1:]))
