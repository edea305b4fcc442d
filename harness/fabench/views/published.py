"""Published figures: where the shipped files are, by name."""

from __future__ import annotations

from pathlib import Path

from fabench.errors import UsageError
from fabench.text import did_you_mean


def folder() -> Path:
    """Where the published figures lie: in the wheel under fabench/data, in a checkout under results/."""
    package = Path(__file__).resolve().parent.parent
    return next(
        (path for path in (package / "data" / "published", package.parents[1] / "results" / "published")
         if path.is_dir()),
        package / "data" / "published",
    )  # fmt: skip


def shipped() -> dict[str, Path]:
    """Name -> file of every shipped set, e.g. 'published/fa3_h100'."""
    return {f"published/{path.stem}": path for path in sorted(folder().glob("*.jsonl"))}


def find(name: str) -> Path:
    """The file that `--against` names: a path, or a shipped name with or without 'published/'. Raises UsageError."""
    known = shipped()
    for candidate in (name, f"published/{name}"):
        if candidate in known:
            return known[candidate]
    if Path(name).is_file():
        return Path(name)
    hint = did_you_mean(name, known) or f"; shipped: {', '.join(known) or 'none'}"
    raise UsageError(f"'{name}' must be a result file or a shipped set of published figures{hint}")
