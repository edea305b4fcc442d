"""`fabench kernels`: what the in-repo kernels compile to, on any architecture, with no GPU.

Kernel packages are found among the modules of fabench_backends: those with `kernel_names(arch)` and
`kernel_stats(arch, name, fresh=...)`, which compiles one configuration and returns a dict: name, registers, spills,
shared_bytes, shared_limit; stack, spill_limit (else 0), seconds, warnings and unkept where they are known. A package
whose compiled kernels are kept where the first launch finds them also has `cache_folder()`, and `launched_as(arch)`,
the name under which a device of that architecture looks for them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from types import ModuleType
from typing import Any, Self

import click

from fabench.cli import architectures
from fabench.cli.seconds import Seconds
from fabench.cli.stdout import say
from fabench.errors import FabenchError, UsageError
from fabench.text import counted

FEW = 8
"""As many configurations are compiled in less time than other processes take to start."""


@dataclass(frozen=True)
class Selection:
    """Which configurations: a list of architectures, a part of the name, every nth of them."""

    archs: tuple[str, ...]
    only: str | None
    shard: tuple[int, int]

    @classmethod
    def of(cls, packages: list[ModuleType], archs: tuple[str, ...], only: str | None, shard: tuple[int, int]) -> Self:
        """The same with the architectures that a launch here would ask for, if `archs` is ()."""
        asked_for = next((p.launched_as for p in packages if hasattr(p, "launched_as")), str)
        return cls(architectures.chosen(archs, asked_for), only, shard)

    def names(self, arch: str, packages: list[ModuleType]) -> list[tuple[str, str]]:
        """(module, name) of each on one architecture, before they are divided among shards."""
        return [(p.__name__, name) for p in packages for name in p.kernel_names(arch) if (self.only or "") in name]

    def items(self, packages: list[ModuleType]) -> list[tuple[str, str, str]]:
        """(architecture, module, name) of each. Raises UsageError if no name contains `only`."""
        found = []
        for arch in self.archs:
            names = self.names(arch, packages)
            found += [(arch, *each) for each in names[self.shard[0] :: self.shard[1]]]
            if not names:
                raise UsageError(
                    f"'--only' must be part of a configuration's name on {arch}, got '{self.only}'; "
                    f"see 'fabench kernels list'"
                )
        return found

    def kept_items(self, packages: list[ModuleType]) -> list[tuple[str, str, str]]:
        """`items` of the packages that keep their kernels. Raises UsageError for what no launch would find there."""
        keeping = [package for package in packages if hasattr(package, "cache_folder")]
        for arch in self.archs:
            for package in keeping:
                if (exact := package.launched_as(arch)) != arch:
                    raise UsageError(f"'--arch' must be {exact}, as which a launch looks for it, got '{arch}'")
            if not self.names(arch, keeping) and self.names(arch, packages):
                raise UsageError(
                    f"'--only' must be part of the name of a kernel that is kept, got '{self.only}': "
                    f"what has it is compiled on its first launch"
                )
        return self.items(keeping)


def parse_shard(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    """'3/10' -> (3, 10): every tenth configuration from the fourth on. Raises UsageError on anything else."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(f"'--shard' must be i/n with 0 <= i < n, got '{text}'")
    return int(match[1]), int(match[2])


def selecting(function: Any) -> Any:
    """The options that all subcommands share."""
    for option in reversed(
        (
            architectures.option,
            click.option("--only", metavar="TEXT", help="Configurations whose name contains it, e.g. 'v2_fwd d128'."),
            click.option(
                "--shard", default="0/1", callback=parse_shard, metavar="i/n",
                help="Every nth configuration, from number i on, of each architecture.",
            ),
        )
    ):  # fmt: skip
        function = option(function)
    return function


def compiling(function: Any) -> Any:
    """The options of the subcommands that compile."""
    jobs = len(os.sched_getaffinity(0))
    return click.option(
        "--jobs", type=click.IntRange(1), default=jobs, metavar="N", help="Compile N at once.  [default: one a core]"
    )(function)


def kernel_packages() -> Iterator[ModuleType]:
    """The modules of fabench_backends that can compile their kernels without a GPU."""
    import fabench_backends

    for info in sorted(pkgutil.iter_modules(fabench_backends.__path__), key=lambda i: i.name):
        module = importlib.import_module(f"fabench_backends.{info.name}")
        if hasattr(module, "kernel_stats"):
            yield module


def stats_of(item: tuple[str, str, str], fresh: bool = False) -> dict[str, Any]:
    """The stats of one (architecture, module, name)."""
    arch, module, name = item
    stats: dict[str, Any] = importlib.import_module(module).kernel_stats(arch, name, fresh=fresh)
    return stats


def faults(stats: dict[str, Any], max_seconds: float | None = None) -> list[str]:
    """Why a kernel must not ship: spills, a stack frame, C75xx warnings, more shared memory than there is."""
    found, most = [], stats.get("spill_limit", 0)
    if stats["spills"] > most:
        found.append(f"{stats['spills']} bytes of spills, must be at most {most}")
    if stats.get("stack"):
        found.append(f"a stack frame of {stats['stack']} bytes, must be 0")
    if stats["shared_bytes"] > stats["shared_limit"]:
        found.append(f"{stats['shared_bytes']} bytes of shared memory, must be at most {stats['shared_limit']}")
    if max_seconds is not None and (stats.get("seconds") or 0.0) > max_seconds:
        found.append(f"compiled in {round(stats['seconds'], 3):g} s, must be at most {max_seconds:g} s")
    return [*found, *stats.get("warnings", ())]


@click.group()
def command() -> None:
    """What the in-repo kernels compile to: registers, spills, shared memory. Needs no GPU."""


@command.command("list")
@selecting
def list_(archs: tuple[str, ...], only: str | None, shard: tuple[int, int]) -> None:
    """Print the name of every configuration; nothing is compiled."""
    packages = list(kernel_packages())
    for arch, _, name in Selection.of(packages, archs, only, shard).items(packages):
        say(f"{arch} {name}")


@command.command()
@selecting
@compiling
def build(archs: tuple[str, ...], only: str | None, shard: tuple[int, int], jobs: int) -> None:
    """Compile the CUDA kernels into the cache, so that the first launch need not.

    Fails as `stats` does, naming what failed, and where a kernel cannot be kept. The Triton kernels are compiled by
    Triton on their first launch.
    """
    packages = list(kernel_packages())
    rows = []
    for (arch, module, name), stats in compiled(Selection.of(packages, archs, only, shard).kept_items(packages), jobs):
        if stats.get("unkept"):
            folder = importlib.import_module(module).cache_folder()
            raise FabenchError(
                f"'{folder}' must be a folder that can be written, to keep '{name}' for {arch}, "
                f"got {stats['unkept']}; name another in FABENCH_CACHE"
            )
        rows.append((arch, stats))
    folders = ", ".join(f"'{package.cache_folder()}'" for package in packages if hasattr(package, "cache_folder"))
    judge(rows, f"in {folders}")


@command.command()
@selecting
@compiling
@click.option("--fresh", is_flag=True, help="Compile anew, whatever the cache holds, and time it.")
@click.option(
    "--max-seconds", type=Seconds(), metavar="S",
    help="Also fail if a configuration takes longer to compile.",
)  # fmt: skip
def stats(
    archs: tuple[str, ...], only: str | None, shard: tuple[int, int], jobs: int, fresh: bool, max_seconds: float | None
) -> None:
    """Print a line per configuration and architecture.

    Exits with 1 on register spills (of Triton's kernels: more than they are known to need), a stack frame, a C75xx
    warning of ptxas, or more shared memory than the architecture has.
    """
    from fabench.views.render import render
    from fabench.views.show import terminal_width

    packages = list(kernel_packages())
    items = Selection.of(packages, archs, only, shard).items(packages)
    rows = [(item[0], stats) for item, stats in compiled(items, jobs, fresh=fresh)]
    say(render(table(rows), "simple", terminal_width()).lstrip("\n"))
    say()
    judge(rows, max_seconds=max_seconds)


def compiled(
    items: list[tuple[str, str, str]], jobs: int, *, fresh: bool = False
) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """Each item and its stats, as they are compiled, in order; a terminal sees how far it has come."""
    with mapping(min(jobs, len(items)) if len(items) > FEW else 1) as over:
        found = over(stats_of, items, [fresh] * len(items))
        if sys.stderr.isatty():
            with click.progressbar(found, length=len(items), label="compiling", file=sys.stderr) as shown:
                yield from zip(items, shown, strict=True)
        else:
            yield from zip(items, found, strict=True)


@contextmanager
def mapping(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map`, or one over processes: NVRTC 13.0 mixes up the logs of threads."""
    if jobs == 1:
        yield map
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, ignore)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


COLUMNS = ("registers", "stack B", "spills B", "shared KiB", "limit KiB", "compile s")


def table(rows: list[tuple[str, dict[str, Any]]]) -> Any:
    """The stats as a table."""
    from fabench.views.grid import Cell, Table

    def cells(stats: dict[str, Any]) -> list[str]:
        seconds = stats.get("seconds")
        return [
            str(stats["registers"]), str(stats.get("stack", "-")), str(stats["spills"]),
            *(f"{stats[key] / 1024:.1f}" for key in ("shared_bytes", "shared_limit")),
            "-" if seconds is None else f"{seconds:.2f}",
        ]  # fmt: skip

    lines = tuple(((arch, stats["name"]), tuple(map(Cell, cells(stats)))) for arch, stats in rows)
    return Table((), ("arch", "configuration"), COLUMNS, lines, ())


def judge(rows: list[tuple[str, dict[str, Any]]], where: str = "", *, max_seconds: float | None = None) -> None:
    """Print how many there are, and exit with 1 if anything is at fault."""
    wrong = [f"{arch} {stats['name']}: {fault}" for arch, stats in rows for fault in faults(stats, max_seconds)]
    compiled = f"{counted(len(rows), 'configuration')} compiled{' ' * bool(where)}{where}"
    say(f"{compiled}, {counted(len(wrong), 'fault')}")
    for line in wrong:
        click.echo(line, err=True)
    if wrong:
        raise click.exceptions.Exit(1)
