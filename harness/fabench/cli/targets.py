"""Files that a command reads or writes, looked at before the work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fabench.errors import UsageError
from fabench.output_files import check


def check_targets(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Raise UsageError now rather than after the work. Nothing is written yet, and no input may be written over."""
    for index, path in enumerate(targets):
        check_apart(path, inputs)
        check(path)
        if any(same(path, other) for other in targets[:index]):
            raise UsageError(f"'{path}' must be written once, and two options name it; choose another name for one")


def check_apart(target: Path, inputs: Iterable[Path]) -> None:
    """Raise UsageError if writing `target` would destroy one of the files that are read."""
    if any(same(target, other) for other in inputs):
        raise UsageError(f"'{target}' is read by this command and must not be written too; choose another name")


def source(spec: str) -> Path:
    """The file that FILE.py or FILE.py:fn names."""
    return Path(spec.rpartition(":")[0] or spec)


def same(one: Path, other: Path) -> bool:
    """True if both paths name one file. Devices, such as /dev/stdout, may be named as often as one likes."""
    if one.exists() and not one.is_file():
        return False
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.absolute() == other.absolute()


def check_regular(paths: Iterable[Path]) -> None:
    """Raise UsageError for a pipe or a device, which can be read only once."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"'{path}' must be a regular file, because it is read twice; copy it into one")
