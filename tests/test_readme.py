"""Every command that the README and the guides show is one that can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KERNEL = """
import torch

def attention(q, k, v, causal=False, scale=None):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float() for x in (k, v))
    S = q.float() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(S, -1) @ v).to(q.dtype)
"""
"""Right in every case, however many of them a budget has room for."""
CHEAP = {"run": ["--dry-run", "--device", "cpu"], "parity": ["--budget", "3s", "--device", "cpu"]}
"""What is added to a command so that it takes seconds: a run stops after its plan, and parity after a few cases."""
MEASURED_ELSEWHERE = ("profile", "calibrate", "kernels")
"""Commands that need a GPU, its tools, or minutes: their options are looked at, and nothing is run."""
ANSWERS = {"diff": (0, 1, 3)}
"""Exit codes that are answers: here the files do not differ, differ, or have too few rounds to tell."""


def commands(page: Path) -> Iterator[str]:
    """The lines `$ ...` of its console blocks and its `...` in code quotes that begin with fabench or make."""
    text = page.read_text()
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        shown = [
            line[2:].partition("  #")[0].partition(" | tail ")[0] for line in block.splitlines() if line[:2] == "$ "
        ]
        yield from (line.strip() for line in shown)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    quoted = (re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose))
    yield from (code for code in quoted if code.split(" ")[0] in ("fabench", "make"))


def said(page: Path, program: str) -> list[list[str]]:
    """The arguments of each different command of `program`, as a shell would split them."""
    found = dict.fromkeys(command for command in commands(page) if command.split(" ")[0] == program)
    return [shlex.split(command)[1:] for command in found]


def label(value: object) -> str | None:
    return " ".join(value) if isinstance(value, list) else value.name if isinstance(value, Path) else None


EVERY = [(page, arguments) for page in PAGES for arguments in said(page, "fabench") if arguments]


def test_the_readme_opens_with_make_demo_and_make_test() -> None:
    assert said(README, "make")[:2] == [["demo"], ["test"]]


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_make_line_names_a_target(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

    named = {word for arguments in said(page, "make") for word in arguments if "=" not in word}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_link_and_every_file_named_is_there(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in link]
    named = re.findall(r"`((?:harness|backends|tests|suites|docs|examples|results)/[\w./-]*)`", text)

    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("page", "arguments"), EVERY, ids=label)
def test_every_command_has_these_options_with_such_values(page: Path, arguments: list[str]) -> None:
    with main.make_context("fabench", list(arguments)) as group:
        name, command, rest = main.resolve_command(group, list(arguments))
        assert command is not None
        while isinstance(command, click.Group) and rest:
            name, command, rest = command.resolve_command(group, rest)
            assert command is not None
        try:
            command.make_context(name, rest, parent=group)
        except click.MissingParameter:  # `fabench show` in a sentence is the command's name
            assert not rest
        except click.exceptions.NoArgsIsHelpError:
            assert not rest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the README's reader has in the current folder."""
    (tmp_path / "suites").symlink_to(ROOT / "suites")
    (tmp_path / "results").mkdir()
    for place in (ROOT / "results").iterdir():
        (tmp_path / "results" / place.name).mkdir()
        for file in place.iterdir():
            (tmp_path / "results" / place.name / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [a for a in said(README, "fabench") if a], ids=label)
def test_every_command_of_the_readme_runs(arguments: list[str], folder: Path) -> None:
    name = arguments[0]
    if name in MEASURED_ELSEWHERE:
        pytest.skip(f"fabench {name} needs a GPU or minutes; its options are tested above")

    done = CliRunner().invoke(main, [*with_files(arguments, folder), *CHEAP.get(name, [])])

    assert done.exit_code in ANSWERS.get(name, (0,)), done.output
    assert done.output.strip()


def with_files(arguments: list[str], folder: Path) -> list[str]:
    """The arguments with globs expanded, once a kernel or a result file is there for each that is named and is not."""
    words: list[str] = []
    for word in arguments:
        path = folder / word.partition(":")[0]
        if path.suffix == ".py" and not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(KERNEL)
        if path.suffix == ".jsonl" and not list(folder.glob(word)):
            path = Path(str(path).replace("*", "one"))
            path.parent.mkdir(parents=True, exist_ok=True)
            make.build(path, [make.row(make.case())])
        words += sorted(str(found.relative_to(folder)) for found in folder.glob(word)) if "*.jsonl" in word else [word]
    return words
