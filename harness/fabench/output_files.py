"""Files that a command writes after its work: tried before it, and written with one sentence for what goes wrong."""

from __future__ import annotations

from pathlib import Path

from fabench.errors import UsageError


def obstacle(path: Path) -> str | None:
    """Why `path` could not be written, None if it can be. Makes its folders, and leaves no new file."""
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        return error.strerror
    return None


def write_text(path: Path, text: str) -> None:
    """Write a file, and the folders it is in. Raises UsageError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from None
