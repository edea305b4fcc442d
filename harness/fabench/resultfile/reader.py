"""Reading a result file: every line validated, the file's own rules checked, the rows that count picked out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fabench.case import Case
from fabench.dtypes import DTYPES, RESERVED_DTYPES
from fabench.errors import CaseError, RecordError
from fabench.input_files import open_input
from fabench.records import SCHEMA, Canary, Env, Footer, Header, Row
from fabench.resultfile.line import MINOR, Line, decode, header_schema
from fabench.text import counted

T = TypeVar("T")
LINE_BYTES = 64 * 2**20
"""More than any record takes; a longer line is another kind of file, or a pipe without an end."""


@dataclass
class ResultFile:
    """A result file as read: `rows` are the ones that count, of each (row_id, round) the highest attempt."""

    path: str
    header: Header
    envs: dict[str, Env] = field(default_factory=dict)
    """By env_id."""
    rows: list[Row] = field(default_factory=list)
    """In the order in which each (row_id, round) first appears."""
    canaries: list[Canary] = field(default_factory=list)
    footer: Footer | None = None
    """The last one, or None if the file ends without."""
    warnings: list[str] = field(default_factory=list)
    """Sentences for stderr: a newer minor schema, a part that is missing."""
    truncated: str | None = None
    """Why the file is only a part, or None. Never set unless `allow_partial` was."""
    rows_written: int = 0
    """Row records in the file, superseded attempts among them."""
    torn_bytes: int = 0
    """Length of a torn last line, which is not part of the above."""

    @property
    def complete(self) -> bool:
        """True if the run ended by itself: every planned row is there."""
        return self.truncated is None and self.footer is not None and self.footer.complete

    def env_of(self, row: Row) -> Env:
        """The env record that `row` names."""
        return self.envs[row.env_id]


class _Lines:
    """The numbered records of a file, as a stream. A torn last line ends it and is remembered."""

    def __init__(self, path: str | os.PathLike[str], samples: bool) -> None:
        self.path, self.samples = os.fspath(path), samples
        self.number = 0
        self.torn: RecordError | None = None
        self.newer: str | None = None
        self.unknown: set[str] = set()
        self.torn_bytes = 0

    def __iter__(self) -> Iterator[Line]:
        try:
            with open_input(self.path) as stream:
                while line := stream.readline(LINE_BYTES + 1):
                    self.number += 1
                    if len(line) > LINE_BYTES:
                        raise self.error(
                            f"a line of more than {LINE_BYTES // 2**20} MiB; is this a file that fabench wrote?"
                        )
                    if (record := self._record(line)) is not None:
                        yield record
        except FileNotFoundError:
            raise RecordError(f"'{self.path}' must be a result file, and no such file exists") from None
        except IsADirectoryError:
            raise RecordError(f"'{self.path}' must be a result file, and is a folder") from None
        except OSError as error:
            raise RecordError(f"'{self.path}' cannot be read: {error.strerror}") from None
        if self.number == 0:
            raise RecordError("the file is empty; a result file must begin with a header record", self.path)

    def _record(self, line: bytes) -> Line | None:
        try:
            if self.number == 1:
                major, minor = header_schema(line)
                self.newer = f"fabench/{major}.{minor}" if minor > MINOR else None
            record = decode(line.rstrip(b"\r\n"), newer=self.newer is not None, unknown=self.unknown)
        except RecordError as error:
            if self.number > 1 and not line.endswith(b"\n"):
                self.torn, self.torn_bytes = self.error(error.message), len(line)
                return None
            foreign = self.number == 1 and error.message.startswith("not JSON")
            raise self.error(error.message + ("; is this a file that fabench wrote?" if foreign else "")) from None
        if not self.samples and isinstance(record, Row) and record.samples_ns:
            record.__dict__["samples_ns"] = None  # nobody else has it yet, and a copy of every row takes its time
        return record

    def error(self, message: str) -> RecordError:
        """An error at the line read last."""
        return RecordError(message, self.path, self.number)


def iter_records(path: str | os.PathLike[str], *, samples: bool = True) -> Iterator[Line]:
    """Every record in turn, validated alone, superseded attempts too. The rules between records are `read`'s.

    Raises RecordError with file:line at the first damaged line, a torn last one included.
    """
    lines = _Lines(path, samples)
    yield from lines
    if lines.torn is not None:
        raise lines.torn


def read(path: str | os.PathLike[str], *, allow_partial: bool | None = False, samples: bool = True) -> ResultFile:
    """Read and check a whole file.

    `samples=False` leaves `samples_ns` null once it is validated, which is what a comparison of medians needs of a big
    file. `allow_partial` reads a truncated file as far as it goes, saying so in `warnings`; None refuses it as False
    does, for a command that has no option to allow it. Raises RecordError.
    """
    result, rows = fold(path, lambda row: row, allow_partial=allow_partial, samples=samples)
    result.rows = rows
    return result


def fold(
    path: str | os.PathLike[str], keep: Callable[[Row], T], *, allow_partial: bool | None = False, samples: bool = True
) -> tuple[ResultFile, list[T]]:
    """As `read`, holding of every row that counts only what `keep` makes of it: for files of 100,000 rows and more.

    The `rows` of the ResultFile are left empty. A RecordError that `keep` raises is given the row's file and line.
    """
    lines = _Lines(path, samples)
    check: _Check[T] | None = None
    with _no_collections():
        for record in lines:
            if check is None:
                assert isinstance(record, Header)  # header_schema saw to it
                check = _Check(lines, ResultFile(lines.path, record), keep)
            else:
                check.add(record)
    assert check is not None  # an empty file has raised
    return check.finish(allow_partial), check.kept


@contextmanager
def _no_collections() -> Iterator[None]:
    """Python's garbage collector off: going through ever more rows, none of which is garbage, took most of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Check(Generic[T]):
    """The rules between records, kept while a file streams by."""

    def __init__(self, lines: _Lines, result: ResultFile, keep: Callable[[Row], T]) -> None:
        self.lines, self.result, self.keep = lines, result, keep
        self.kept: list[T] = []
        """What `keep` made of the rows that count."""
        self.best: dict[tuple[str, int], tuple[int, int]] = {}
        """(row_id, round) -> (highest attempt, its index in kept)."""
        self.superseded: set[tuple[str, int, int]] = set()
        self.meaning: dict[str, tuple[dict[str, Any], str]] = {}
        """row_id -> (key, backend)."""
        self.after_footer = 0

    def add(self, record: Line) -> None:
        self.after_footer += 1
        if isinstance(record, Row):
            self._add_row(record)
        elif isinstance(record, Env):
            if (known := self.result.envs.setdefault(record.env_id, record)) != record:
                raise self.lines.error(f"env_id '{known.env_id}' must name one env record, and a different one is here")
        elif isinstance(record, Canary):
            self._env(record.env_id)
            self.result.canaries.append(record)
        elif isinstance(record, Footer):
            self._add_footer(record)
        else:
            raise self.lines.error("a result file must have one header; join two files with 'fabench merge'")

    def _add_row(self, row: Row) -> None:
        result, place = self.result, (row.row_id, row.round)
        self._env(row.env_id)
        self._same_meaning(row)
        result.rows_written += 1
        if place not in self.best:
            self.best[place] = (row.attempt, len(self.kept))
            self.kept.append(self._made_of(row))
            return
        attempt, index = self.best[place]
        if row.attempt == attempt or (*place, row.attempt) in self.superseded:
            raise self.lines.error(
                f"row '{row.row_id}' round {row.round} attempt {row.attempt} must be unique, and is here a second time"
            )
        self.superseded.add((*place, min(attempt, row.attempt)))
        if row.attempt > attempt:
            self.best[place] = (row.attempt, index)
            self.kept[index] = self._made_of(row)

    def _made_of(self, row: Row) -> T:
        try:
            return self.keep(row)
        except RecordError as error:
            raise self.lines.error(error.message) from None

    def _env(self, env_id: str) -> None:
        if env_id not in self.result.envs:
            raise self.lines.error(f"env_id '{env_id}' must name an env record above this line, and there is none")

    def _same_meaning(self, row: Row) -> None:
        if (known := self.meaning.get(row.row_id)) is None:
            try:
                case_of(row.key)
            except CaseError as error:
                raise self.lines.error(f"row '{row.row_id}': {error}") from None
            self.meaning[row.row_id] = (row.key, row.backend)
        elif known != (row.key, row.backend):
            raise self.lines.error(
                f"row_id '{row.row_id}' must mean one case and backend, and stands for two different ones in this file"
            )

    def _add_footer(self, footer: Footer) -> None:
        self.result.footer, self.after_footer = footer, 0

    def finish(self, allow_partial: bool | None) -> ResultFile:
        lines, result = self.lines, self.result
        result.torn_bytes = lines.torn_bytes
        if lines.newer:
            ignored = f"; ignored: {', '.join(sorted(lines.unknown))}" if lines.unknown else ""
            result.warnings.append(f"{lines.path}: schema {lines.newer} is newer than {SCHEMA}{ignored}")
        if why := self._truncated():
            if not allow_partial:
                line = lines.number if lines.torn else None
                help_ = "complete it with 'fabench run --resume'"
                if allow_partial is not None:
                    help_ = "read what is there with --allow-partial"
                raise RecordError(f"{why}; {help_}", lines.path, line)
            result.truncated = why
            result.warnings.append(f"{lines.path}: {why}; what is missing is not shown")
        return result

    def _truncated(self) -> str | None:
        """Why the file is only a part. Rows are counted up to the last footer, all of them if it is the last line."""
        footer, rows = self.result.footer, self.result.rows_written
        if self.lines.torn is not None:
            return f"the file is truncated: its last line is torn ({self.lines.torn.message})"
        if footer is None:
            return f"the file is truncated: it has no footer after {counted(rows, 'row')}"
        if self.after_footer:
            following = counted(self.after_footer, "record follows", "records follow")
            return f"the file is truncated: {following} its last footer"
        if footer.rows_written != rows:
            return f"the file is truncated: its footer counts {counted(footer.rows_written, 'row')}, and it has {rows}"
        return None


def case_of(key: Mapping[str, Any]) -> Case:
    """The case a stored key describes; a published figure's may have a dtype that is not yet measured.

    Raises CaseError unless `key` is a case in its canonical form.
    """
    reserved = key.get("dtype") in RESERVED_DTYPES
    case = None
    with suppress(TypeError, ValueError):  # a value of another type, e.g. "N": "many"
        case = Case.from_key({**key, "dtype": next(iter(DTYPES))} if reserved else key)
    if case is not None and reserved:
        object.__setattr__(case, "dtype", key["dtype"])
    if case is None or case.key != key:
        raise CaseError("'key' must be a case in its canonical form, every field of its own type")
    return case
