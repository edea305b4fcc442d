"""Writing a result file: opened before the first case, each record appended and fsynced, closed with a footer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from fabench.errors import InternalError, RecordError
from fabench.input_files import kind
from fabench.names import Status
from fabench.output_files import make_folders, why
from fabench.records import SCHEMA, Canary, Env, Footer, Header, Record, Row
from fabench.resultfile.line import encode
from fabench.resultfile.reader import ResultFile, read

ROW_BYTES = 8 * 1024
"""What a row is taken to need when the disk is asked for room: 240 samples and their numbers."""

REMEDY = "make room and continue it with --resume"
"""What to do when the disk is full of a file that holds rows."""


class Writer:
    """Appends records to one result file, which it holds a lock on.

    Make one with `create` or `resume`. As a context manager it leaves a valid file whatever happens: an exit without
    `finish` writes a footer with complete=false, except in a resumed file to which nothing was added: that stays as it
    was.
    """

    def __init__(self, path: Path, fd: int, header: Header) -> None:
        self.path, self.header = path, header
        self.resumed: ResultFile | None = None
        """What the file held when it was resumed."""
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self._added = False
        """Whether a record was written."""
        self._rows_written = 0
        self._latest: dict[tuple[str, int], tuple[int, Status]] = {}
        self._envs: set[str] = set()

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> Writer:
        """Start a new file, its folders too, and write the header once there is room for the planned rows.

        Raises RecordError if the path is taken, cannot be written, or the disk is full.
        """
        path = Path(path)
        try:
            make_folders(path)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            if error.filename != str(path):
                raise RecordError(f"'{path}' cannot be written: {why(path, error)}; choose another --out") from None
            if path.is_dir():
                raise RecordError(f"'{path}' must be a file to write, and is a folder; choose another --out") from None
            raise RecordError(
                f"'{path}' must not exist yet; continue it with --resume, or choose another --out"
            ) from None
        except OSError as error:
            raise RecordError(f"'{path}' cannot be written: {why(path, error)}; choose another --out") from None
        writer = cls(path, fd, header)
        try:
            _lock(fd, path)
            writer._reserve(header.planned_rows * ROW_BYTES, "make room, or choose another --out")
            writer._append(header)
            _sync_folder(path.parent)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> Writer:
        """Continue a file, complete or not; a torn last line is dropped. What it holds is in `resumed`.

        Raises RecordError if it cannot be read or written, is damaged otherwise, or is of a newer schema.
        """
        path = Path(path)
        try:
            if (found := kind(path)) not in ("file", "folder"):
                raise RecordError(f"'{path}' must be a file to be continued, got a {found}; copy it into one")
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, IsADirectoryError):
            fd = -1  # for `read` to say
        except OSError as error:
            raise RecordError(f"'{path}' cannot be written: {error.strerror}") from None
        try:
            if fd >= 0:
                _lock(fd, path)
            result = read(path, allow_partial=True)
            if result.header.schema_ != SCHEMA:
                raise RecordError(f"schema '{result.header.schema_}' must be {SCHEMA} to be continued", str(path), 1)
            writer = cls(path, fd, result.header)
            writer._take_over(result)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return writer

    def _take_over(self, result: ResultFile) -> None:
        self.resumed = result
        self._rows_written = result.rows_written
        self._latest = {(row.row_id, row.round): (row.attempt, row.status) for row in result.rows}
        self._envs = set(result.envs)
        missing = max(0, result.header.planned_rows - len(result.rows))
        self._size -= result.torn_bytes
        os.ftruncate(self._fd, self._size)
        self._reserve(missing * ROW_BYTES)
        if os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._append_bytes(b"\n")

    def next_attempt(self, row_id: str, round: int) -> int:  # noqa: A002  # the record's field
        """The attempt that a row of this (row_id, round) has to carry: 0 for the first."""
        latest = self._latest.get((row_id, round))
        return 0 if latest is None else latest[0] + 1

    def write(self, record: Env | Row | Canary) -> None:
        """Append one record and wait until it is on disk. Raises RecordError if the disk is full or fails."""
        if isinstance(record, Row):
            expected = self.next_attempt(record.row_id, record.round)
            if record.attempt < expected:
                raise InternalError(
                    f"row '{record.row_id}' round {record.round} must have attempt {expected} or more, "
                    f"got {record.attempt}"
                )
        if not isinstance(record, Env) and record.env_id not in self._envs:
            raise InternalError(f"env_id '{record.env_id}' must name an env record already written")
        self._append(record)
        if isinstance(record, Env):
            self._envs.add(record.env_id)
        elif isinstance(record, Row):
            self._rows_written += 1
            self._latest[record.row_id, record.round] = (record.attempt, record.status)

    def finish(self, complete: bool) -> Footer:
        """Write the footer and close. `complete` is false for a run that was stopped before its last row."""
        footer = Footer(
            rows_written=self._rows_written,
            status_counts=dict(Counter(status for _, status in self._latest.values())),
            complete=complete,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        try:
            self._append(footer)
            self._find()
        finally:
            os.close(self._fd)
            self._fd = -1
        return footer

    def _find(self) -> None:
        """Follow a file that was renamed meanwhile; put one that was removed back, or beside what took its name."""
        now, known = os.fstat(self._fd), Path(f"/proc/self/fd/{self._fd}")
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path), now):
                return
        if now.st_nlink:
            with contextlib.suppress(OSError):
                self.path = known.readlink()
            return
        while self.path.exists():
            self.path = self.path.with_stem(f"{self.path.stem}-again")
        try:
            make_folders(self.path)
            shutil.copyfile(known, self.path)
        except OSError as error:
            raise _write_error(self.path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd < 0:
            return
        if self.resumed is not None and not self._added:
            os.close(self._fd)
            self._fd = -1
            return
        try:
            self.finish(complete=False)
        except RecordError:
            if error is None:  # else the first failure is the one to tell
                raise

    def _append(self, record: Record) -> None:
        if self._fd < 0:
            raise InternalError("a result file must not be written after its footer")
        self._append_bytes(encode(record))
        self._added = True

    def _append_bytes(self, data: bytes) -> None:
        if (size := os.fstat(self._fd).st_size) != self._size:
            raise RecordError(
                f"'{self.path}' must be left alone while a run writes it, got {size} bytes where it had {self._size}; "
                "what was in it is lost"
            )
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._size + written)
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._size)  # no torn line: what is there stays a readable file
            raise _write_error(self.path, error) from None
        self._size += len(data)

    def _reserve(self, room: int, remedy: str = REMEDY) -> None:
        """Ask the disk for `room` bytes and give them back, so that a full one is found before any work is done."""
        try:
            os.posix_fallocate(self._fd, self._size, max(room, ROW_BYTES))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise _write_error(self.path, error, remedy) from None
        finally:
            os.ftruncate(self._fd, self._size)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(f"'{path}' is being written by another run; wait for it to end") from None
    except OSError:
        return  # a file system without locks


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_error(path: Path, error: OSError, remedy: str = REMEDY) -> RecordError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return RecordError(f"'{path}' cannot be written: {error.strerror}; {remedy}")
    return RecordError(f"'{path}' cannot be written: {error.strerror}")
