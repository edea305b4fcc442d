"""What the control groups of this process say of memory: how much they allow, and whom the kernel killed for it.

A group may lie deep in the tree, as a batch system's or `systemd-run -p MemoryMax=8G` makes it, and each group above it
limits it too. In a container the tree begins at the container's own group, which the path in /proc need not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path("/")


def groups(root: Path = HERE) -> Iterator[Path]:
    """The folders of this process's memory groups that are there, the innermost first, of versions 2 and 1."""
    for hierarchy, own in _own(root):
        folder = hierarchy.joinpath(*(part for part in Path(own).parts if part not in ("/", "..")))
        for place in (folder, *folder.parents):
            if place.is_dir():
                yield place
            if place == hierarchy:
                break


def _own(root: Path) -> Iterator[tuple[Path, str]]:
    """(top folder, path of the own group below it) of each version."""
    mounted, lines = root / "sys/fs/cgroup", list[str]()
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    found = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    yield mounted, next((path for number, _, path in found if number == "0"), "/")
    yield mounted / "memory", next((path for _, names, path in found if "memory" in names.split(",")), "/")


def memory_limits(root: Path = HERE) -> Iterator[tuple[int, int]]:
    """(bytes allowed, bytes used) of each group that has a limit. Cached files are not in use: they give way."""
    for folder in groups(root):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
                allowed, used = int((folder / limit).read_text()), int((folder / usage).read_text())
                yield allowed, max(0, used - _counts(folder / "memory.stat").get("inactive_file", 0))


def oom_kills(root: Path = HERE) -> int:
    """Processes of the own group that the kernel has killed for memory so far."""
    for folder in groups(root):
        for name in ("memory.events", "memory.oom_control"):
            if (killed := _counts(folder / name).get("oom_kill")) is not None:
                return killed
    return 0


def _counts(file: Path) -> dict[str, int]:
    """A file of lines `name number`; nothing where it is not there or is of another kind."""
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in file.read_text().splitlines())
        return {name: int(number) for name, number in lines}
    return {}
