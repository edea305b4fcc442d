"""Files that a command writes. Every option that names one comes through here, so that all of them do the same.

Missing folders are made. What cannot be written is found before the work, which leaves nothing behind, and is told in
one sentence. (Which names are refused because the command reads them, or writes them twice: `cli.targets`.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fabench.errors import UsageError


def make_folders(path: Path) -> None:
    """Make the folders that `path` is in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)


def obstacle(path: Path) -> str | None:
    """Why the file `path` could not be written, None if it can be. Leaves no file and no folder that was not there."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # opening a pipe may wait, or end its reader
            return None if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        at = path.resolve() if path.is_symlink() else path
        there = at.exists()
        with _folder(at.parent):
            at.open("ab").close()
            if not there:
                at.unlink()
    except OSError as error:
        return why(path, error)
    return None


def check(path: Path) -> None:
    """Raise UsageError, before the work, if the file `path` could not be written after it."""
    if (problem := obstacle(path)) is not None:
        raise UsageError(f"'{path}' cannot be written: {problem}")


def check_folder(path: Path) -> None:
    """The same for a folder that files will be put into."""
    try:
        with _folder(path), tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(f"'{path}' must be a folder that can be written to: {why(path / 'x', error)}") from None


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """`folder` for the time of a try; what of it was not there is removed again."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()


def why(path: Path, error: OSError) -> str:
    """What kept `path` from being written, in words: of a file in the place of a folder, which one it is."""
    with contextlib.suppress(OSError):
        for folder in path.parents:
            if folder.exists() and not folder.is_dir():
                return f"'{folder}' must be a folder, and is a file"
    return error.strerror or str(error)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The folders that `path` is in, made; what then goes wrong with the file is a UsageError."""
    try:
        make_folders(path)
        yield
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {why(path, error)}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file, and the folders it is in. Raises UsageError if that fails."""
    with writing(path):
        path.write_text(text, encoding="utf-8")
