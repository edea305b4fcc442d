"""`fabench kernels`: what the in-repo kernels compile to, on any architecture, with no GPU.

Kernel packages are found among the modules of fabench_backends: those with a function `iter_stats(arch, only)`, which
yields a dict a configuration (name, registers, spills, shared_bytes, shared_limit; stack, seconds and warnings where
they are known), and perhaps `iter_names(arch)`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import click
from tabulate import tabulate

from fabench.errors import UsageError

DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Selection:
    """Which configurations: a list of architectures, a part of the name, every nth of them."""

    archs: tuple[str, ...]
    only: str | None
    shard: tuple[int, int]

    def holds(self, index: int) -> bool:
        """True if the configuration with this index is in the shard."""
        return index % self.shard[1] == self.shard[0]


def parse_archs(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """'sm_80,sm_90a' -> its names. Raises UsageError on anything else."""
    archs = tuple(part.strip() for part in text.split(","))
    for arch in archs:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
            raise UsageError(f"'--arch' must be architectures such as sm_80,sm_90a, got '{arch}'")
    return archs


def parse_shard(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    """'3/10' -> (3, 10): every tenth configuration from the fourth on. Raises UsageError on anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(f"'--shard' must be i/n with 0 <= i < n, got '{text}'")
    return int(match[1]), int(match[2])


def selecting(function: Any) -> Any:
    """The options that all subcommands share."""
    for option in (
        click.option("--arch", "archs", default=DEFAULT_ARCH, show_default=True, callback=parse_archs, metavar="A,B"),
        click.option("--only", metavar="TEXT", help="Configurations whose name contains it, e.g. 'v2_fwd d128'."),
        click.option("--shard", default="0/1", callback=parse_shard, metavar="i/n", help="Every nth from the ith."),
    ):
        function = option(function)
    return function


def kernel_packages() -> Iterator[ModuleType]:
    """The modules of fabench_backends that can compile their kernels without a GPU."""
    import fabench_backends

    for info in sorted(pkgutil.iter_modules(fabench_backends.__path__), key=lambda i: i.name):
        module = importlib.import_module(f"fabench_backends.{info.name}")
        if hasattr(module, "iter_stats"):
            yield module


def stats_of(selection: Selection) -> Iterator[tuple[str, dict[str, Any]]]:
    """(architecture, stats) of every configuration selected, as each is compiled."""
    for arch in selection.archs:
        index = 0
        for package in kernel_packages():
            if not hasattr(package, "iter_names"):
                for stats in package.iter_stats(arch, selection.only):
                    if selection.holds(index):
                        yield arch, stats
                    index += 1
                continue
            for name in package.iter_names(arch):
                if selection.only is None or selection.only in name:
                    if selection.holds(index):
                        yield arch, next(s for s in package.iter_stats(arch, name) if s["name"] == name)
                    index += 1


def faults(stats: dict[str, Any]) -> list[str]:
    """Why a kernel must not ship: spills, a stack frame, C75xx warnings, more shared memory than there is."""
    found = []
    for what in ("spills", "stack"):
        if stats.get(what):
            found.append(f"{stats[what]} bytes of {what}, must be 0")
    if stats["shared_bytes"] > stats["shared_limit"]:
        found.append(f"{stats['shared_bytes']} bytes of shared memory > {stats['shared_limit']}")
    return [*found, *stats.get("warnings", ())]


@click.group()
def command() -> None:
    """What the in-repo kernels compile to: registers, spills, shared memory. Needs no GPU."""


@command.command("list")
@selecting
def list_(archs: tuple[str, ...], only: str | None, shard: tuple[int, int]) -> None:
    """Print the name of every configuration; nothing is compiled."""
    selection = Selection(archs, only, shard)
    for arch in archs:
        index = 0
        for package in kernel_packages():
            for name in package.iter_names(arch) if hasattr(package, "iter_names") else ():
                if only is None or only in name:
                    if selection.holds(index):
                        click.echo(f"{arch} {name}")
                    index += 1


@command.command()
@selecting
def build(archs: tuple[str, ...], only: str | None, shard: tuple[int, int]) -> None:
    """Compile into the cache, so that the first launch need not. Fails as `stats` does, naming what failed."""
    report(Selection(archs, only, shard), table=False)


@command.command()
@selecting
def stats(archs: tuple[str, ...], only: str | None, shard: tuple[int, int]) -> None:
    """Print a line per configuration and architecture.

    Exits with 1 on register spills, a stack frame, a C75xx warning of ptxas, or more shared memory than the
    architecture has.
    """
    report(Selection(archs, only, shard), table=True)


HEADERS = ["arch", "configuration", "registers", "stack", "spills", "shared KiB", "limit KiB", "compile s"]


def report(selection: Selection, *, table: bool) -> None:
    """Compile, print, and exit with 1 if anything is at fault."""
    rows, wrong = [], []
    for arch, found in stats_of(selection):
        shared = [f"{found[key] / 1024:.1f}" for key in ("shared_bytes", "shared_limit")]
        seconds = found.get("seconds")
        rows.append(
            [arch, found["name"], found["registers"], found.get("stack", ""), found["spills"], *shared,
             "" if seconds is None else f"{seconds:.2f}"]
        )  # fmt: skip
        wrong += [f"{arch} {found['name']}: {fault}" for fault in faults(found)]
    if table:
        click.echo(tabulate(rows, HEADERS, disable_numparse=True, stralign="left"))
    click.echo(f"{len(rows)} configurations compiled, {len(wrong)} faults")
    for line in wrong:
        click.echo(line, err=True)
    if wrong:
        raise click.exceptions.Exit(1)
