"""Joins result files of one suite: the shards of one run, or rounds measured in several sessions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from fabench.case import digest
from fabench.diff.relation import identity_difference
from fabench.errors import RecordError, UsageError
from fabench.names import Status
from fabench.output_files import check, make_folders, why
from fabench.records import SCHEMA, Canary, Env, Footer, Header, Row
from fabench.resultfile import ResultFile, fold, iter_records
from fabench.resultfile.line import encode

LISTS = ("backend", "backend_file", "rows")
"""Filters that are lists: together the files hold what any of them asked for."""


@dataclass(frozen=True)
class Merged:
    """What was written."""

    path: Path
    files: int
    rows: int
    rounds: int
    complete: bool


def merge(paths: Sequence[str | os.PathLike[str]], out: Path, *, renumber: bool = False) -> Merged:
    """Write one file with the records of all. Every input is checked before anything is written.

    With `renumber`, the rounds of each file follow those of the files before it: sessions become rounds. Raises
    UsageError if the files are not of one suite, version, side and kind of hardware, if two hold the same (row_id,
    round, attempt) or the same samples of a row, or if the output is there already; RecordError for a damaged input.
    """
    if len(paths) < 2:
        raise UsageError(f"two files or more can be merged, got {len(paths)}")
    if out.exists():
        raise _taken(out)
    check(out)
    places: dict[tuple[str, int, int], int] = {}
    latest: dict[tuple[str, int], tuple[int, Status]] = {}
    measured: dict[int, int] = {}
    files: list[ResultFile] = []
    offsets: list[int] = []
    header: Header | None = None
    for index, path in enumerate(str(os.fspath(path)) for path in paths):
        offset = max((number for _, number in latest), default=-1) + 1 if renumber else 0
        file, rows = fold(
            path, lambda row: (row.row_id, row.round, row.attempt, row.status, _samples(row)), allow_partial=None
        )
        if file.header.schema_ != SCHEMA:
            raise RecordError(
                f"schema '{file.header.schema_}' must be {SCHEMA} to be merged: fields would be lost", path, 1
            )
        files.append(file)
        offsets.append(offset)
        header = joined([one.header for one in files], [one.path for one in files])
        for row_id, number, attempt, status, samples in rows:
            place = row_id, number + offset, attempt
            if (other := places.setdefault(place, index)) != index:
                hint = "" if renumber else "; --renumber makes the rounds of each file follow those of the one before"
                raise UsageError(
                    f"row '{row_id}' round {number} attempt {attempt} must be in one file, and is in "
                    f"'{files[other].path}' and '{path}'{hint}"
                )
            if samples is not None and (other := measured.setdefault(samples, index)) != index:
                raise UsageError(
                    f"row '{row_id}' has the same samples in '{files[other].path}' and '{path}': one measurement must "
                    "not count as two rounds; leave one of the files out"
                )
            if (known := latest.get(place[:2])) is None or known[0] < attempt:
                latest[place[:2]] = attempt, status
    assert header is not None  # there are two files or more
    header = header.model_copy(update={"rounds": len({number for _, number in latest})})
    complete = all(file.complete for file in files)
    counts = Counter(status for _, status in latest.values())
    written = sum(file.rows_written for file in files)
    footer = Footer(rows_written=written, status_counts=dict(counts), complete=complete, ended=_now())
    _write(out, header, files, offsets, footer)
    return Merged(out, len(files), written, header.rounds, complete)


def _samples(row: Row) -> int | None:
    """What tells one measurement of a row from every other; None without samples."""
    return hash((row.row_id, row.env_id, *row.samples_ns)) if row.samples_ns else None


def joined(headers: Sequence[Header], paths: Sequence[str]) -> Header:
    """The header of the whole, but for its rounds. Raises UsageError where headers that must agree do not."""
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        for what, mine, theirs in (
            ("suite", (first.suite.get("name"), first.suite_hash), (header.suite.get("name"), header.suite_hash)),
            ("fabench version", first.harness.version, header.harness.version),
            ("side of an --ab run", first.ab_side, header.ab_side),
        ):
            if mine != theirs:
                raise UsageError(
                    f"'{paths[0]}' and '{path}' must have one {what}, got {_text(mine)} and {_text(theirs)}"
                )
    sessions = sorted({header.session_id for header in headers})
    same_code = all(header.harness == first.harness for header in headers)
    return first.model_copy(
        update={
            "run_id": digest([header.run_id for header in headers]),
            "session_id": sessions[0] if len(sessions) == 1 else digest(sessions),
            "started": min(header.started for header in headers),
            "argv": ["fabench", "merge", *paths],
            "filter": joined_filter([header.filter for header in headers], paths),
            "planned_rows": sum(header.planned_rows for header in headers),
            "harness": first.harness
            if same_code
            else first.harness.model_copy(update={"git_sha": None, "dirty": None}),
        }
    )


def joined_filter(filters: Sequence[dict[str, Any]], paths: Sequence[str]) -> dict[str, Any]:
    """What narrowed the whole: all shards together narrow nothing. Raises UsageError if filters cannot be joined."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in filters for name in one):
        values = [one.get(name) for one in filters]
        if all(value == values[0] for value in values):
            out[name] = values[0]
        elif name == "shard":
            if (left := _shards(values, paths)) is not None:
                out[name] = left
        elif name in LISTS:
            lists = [value for value in values if isinstance(value, list)]
            if len(lists) == len(values):
                out[name] = sorted({item for one in lists for item in one})
        else:
            raise UsageError(
                f"'{paths[0]}' and the others must be narrowed by one '{name}', got "
                f"{' and '.join(sorted({_text(value) for value in values}))}"
            )
    return out


def _shards(values: Sequence[Any], paths: Sequence[str]) -> list[Any] | None:
    """The shards that are there, or None if that is all of them. Raises UsageError if they are not of one division."""
    shards = [shard for value in values for shard in (value if value and isinstance(value[0], list) else [value])]
    if None in shards or len({shard[1] for shard in shards}) != 1:
        raise UsageError(
            f"'{paths[0]}' and the others must be shards of one division, got "
            f"{', '.join('the whole' if shard is None else f'{shard[0]}/{shard[1]}' for shard in shards)}"
        )
    here = sorted({tuple(shard) for shard in shards})
    return None if len(here) == here[0][1] else [list(shard) for shard in here]


def _write(out: Path, header: Header, files: Sequence[ResultFile], offsets: Sequence[int], footer: Footer) -> None:
    envs = _envs(files)
    try:
        make_folders(out)
        with open(out, "xb") as stream:
            try:
                for record in (header, *envs.values()):
                    stream.write(encode(record))
                for file, offset in zip(files, offsets, strict=True):
                    _copy(stream, file.path, offset)
                stream.write(encode(footer))
                stream.flush()
                os.fsync(stream.fileno())
            except BaseException:
                out.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise _taken(out) from None
    except OSError as error:
        raise UsageError(f"'{out}' cannot be written: {why(out, error)}") from None


def _taken(out: Path) -> UsageError:
    return UsageError(f"'{out}' must not exist yet; choose another --out")


def _envs(files: Sequence[ResultFile]) -> dict[str, Env]:
    """The envs of all files. Raises UsageError if two share an id, or are of different hardware."""
    envs: dict[str, Env] = {}
    first: tuple[str, Env] | None = None
    for file in files:
        for env_id, env in file.envs.items():
            if envs.setdefault(env_id, env) != env:
                raise UsageError(f"env_id '{env_id}' must name one env record, and names another one in '{file.path}'")
            first = first or (file.path, env)
            if difference := identity_difference(first[1].identity, env.identity):
                raise UsageError(
                    f"'{first[0]}' and '{file.path}' must be of one kind of hardware to be one file, got {difference}; "
                    "compare two cards with 'fabench diff --cross-gpu'"
                )
    return envs


def _copy(stream: BinaryIO, path: str, offset: int) -> None:
    for record in iter_records(path):
        if isinstance(record, Row | Canary):
            moved = record.model_copy(update={"round": record.round + offset}) if offset else record
            stream.write(encode(moved))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(str(part) for part in value)
    return "none" if value is None else str(value)
