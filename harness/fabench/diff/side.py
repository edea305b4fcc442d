"""One of the two files as the comparison needs it: by row its worst status and the log-time of every round.

A file is read as a stream and of each row record only a few numbers are kept, so memory is some hundred bytes a round.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabench.case import Case
from fabench.diff.estimates import Floats, Ints, Rounds
from fabench.errors import RecordError
from fabench.names import FLAGS, SEVERITY, Flag, Regime, Status
from fabench.records import CostRecord, Method, Row
from fabench.resultfile import ResultFile, case_of, fold
from fabench.resultfile.consistency import RISING, rising

PARALLEL_BYTES = 64 * 2**20
"""Two files larger than this together are read in two processes: starting one takes half a second."""


@dataclass(frozen=True)
class Meaning:
    """What all rounds of a row share."""

    row_id: str
    case: Case
    backend: str
    rerun: str
    cost: CostRecord | None
    published: bool


_Round = tuple[int, int, int, int, int, float, int, float, int, str | None]
"""What is kept of one row record: row, round, env, method and status as numbers (they index the tables of `_Fold`),
median ns, calls per sample, mean SM clock in MHz, flags as bits in the order of `names.FLAGS`, message."""


@dataclass(frozen=True)
class Side:
    """A result file by row; arrays are [rows], in the order of first appearance."""

    path: str
    file: ResultFile
    """Header, envs, canaries, footer, warnings; no rows."""
    rows: tuple[Meaning, ...]
    index: dict[str, int]
    """row_id -> row."""
    status: tuple[Status, ...]
    """The worst of the rounds."""
    messages: dict[int, str]
    """Row -> why it is not ok: the message of its first round of the worst status."""
    times: Rounds
    """ln ns of every ok round that has a time; none for a row whose status is not ok."""
    numbers: Ints
    """Round numbers, beside `times.y`, -1 where there is none."""
    cycles: Rounds
    """ln of clock cycles of the same rounds; none for a row of which a round has no clock."""
    calls: Floats
    """Calls per sample, the median over rounds."""
    flags: tuple[tuple[Flag, ...], ...]
    """Every flag of any timed round, in the order of `names.FLAGS`."""
    methods: tuple[frozenset[str], ...]
    """The method_ids of a row's timed rounds."""
    envs: tuple[frozenset[str], ...]
    """The env_ids of a row's rounds."""
    method: dict[str, Method]
    """method_id -> the method, where a row spells it out."""

    @cached_property
    def median_ns(self) -> Floats:
        """Median over rounds of each row's medians, NaN where it has no time."""
        out = np.full(len(self.rows), math.nan)
        some = np.flatnonzero(self.times.count > 0)
        out[some] = np.exp(np.nanmedian(self.times.y[some], axis=1))
        return out

    def median_of(self, row: int) -> float | None:
        """Median over rounds of one row's medians in ns; None where it has no time."""
        return float(self.median_ns[row]) if self.times.count[row] else None

    def regime(self, row: int) -> Regime | None:
        """The regime the row was timed in."""
        names = {self.method[m].regime for m in self.methods[row] if m in self.method}
        return names.pop() if len(names) == 1 else None


def load(path: str | os.PathLike[str], *, allow_partial: bool | None = False) -> Side:
    """Read a result file; `allow_partial` as `resultfile.read` has it. Raises RecordError, with file and line."""
    folded = _Fold()
    file, rounds = fold(path, folded.keep, allow_partial=allow_partial)
    return folded.side(file, rounds)


class _Fold:
    """Tables that grow while a file streams by."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.meanings: list[Meaning] = []
        self.envs: dict[str, int] = {}
        self.methods: dict[str, int] = {}
        self.method: dict[str, Method] = {}

    def keep(self, row: Row) -> _Round:
        """The few numbers of one record. Raises RecordError for quantiles that no measurement has."""
        index = self.rows.setdefault(row.row_id, len(self.rows))
        if index == len(self.meanings):
            case = case_of(row.key)
            published = row.published is not None
            self.meanings.append(Meaning(row.row_id, case, row.backend, row.rerun, row.cost, published))
        if row.method_id and row.method:
            self.method.setdefault(row.method_id, row.method)
        clock = row.telemetry.sm_clock_mhz_mean if row.telemetry else None
        return (
            index,
            row.round,
            self.envs.setdefault(row.env_id, len(self.envs)),
            self.methods.setdefault(row.method_id or "", len(self.methods)),
            SEVERITY.index(row.status),
            _median(row),
            row.K or 1,
            clock if clock and clock > 0 else math.nan,
            sum(1 << FLAGS.index(flag) for flag in set(row.flags)) if row.flags else 0,
            None if row.status == "ok" or row.detail is None else row.detail.message,
        )

    def side(self, file: ResultFile, rounds: list[_Round]) -> Side:
        """The arrays by row."""
        rounds.sort(key=itemgetter(0, 1))
        count = len(self.meanings)
        row, number, env, method, status = _columns(rounds, range(5), np.int64)
        median, calls, clock = _columns(rounds, range(5, 8), np.float64)
        (raised,) = _columns(rounds, range(8, 9), np.int64)

        worst = np.zeros(count, dtype=np.int64)
        np.maximum.at(worst, row, status)
        timed = (worst[row] == 0) & np.isfinite(median)
        times, numbers = _pack(count, row[timed], np.log(median[timed]), number[timed])
        cycles, _ = _pack(count, row[timed], np.log(median[timed]) + np.log(clock[timed]), number[timed])
        cycles.count[np.isnan(np.where(np.isnan(times.y), 0.0, cycles.y)).any(axis=1)] = 0

        flags = np.zeros(count, dtype=np.int64)
        np.bitwise_or.at(flags, row[timed], raised[timed])
        messages: dict[int, str] = {}
        for kept in rounds:
            at, status_of_round, message = kept[0], kept[4], kept[9]
            if message is not None and status_of_round == worst[at]:
                messages.setdefault(at, message)
        return Side(
            path=file.path,
            file=file,
            rows=tuple(self.meanings),
            index=self.rows,
            status=tuple(SEVERITY[s] for s in worst),
            messages=messages,
            times=times,
            numbers=numbers,
            cycles=cycles,
            calls=_typical(count, row[timed], calls[timed]),
            flags=tuple(_flags(bits) for bits in flags.tolist()),
            methods=_names(count, row[timed], method[timed], tuple(self.methods)),
            envs=_names(count, row, env, tuple(self.envs)),
            method=self.method,
        )


@lru_cache
def _flags(bits: int) -> tuple[Flag, ...]:
    return tuple(flag for index, flag in enumerate(FLAGS) if bits >> index & 1)


def _median(row: Row) -> float:
    """The row's median ns; NaN if it has none or is not ok. Raises RecordError for impossible quantiles."""
    if row.quantiles is None:
        return math.nan
    if not rising(row.quantiles):
        raise RecordError(f"row '{row.row_id}' round {row.round}: {RISING}, got {row.quantiles}")
    return row.quantiles["median"] if row.status == "ok" else math.nan


def _columns(rounds: Sequence[_Round], which: range, kind: type[Any]) -> list[NDArray[Any]]:
    return [np.array([r[column] for r in rounds], dtype=kind) for column in which]


def _pack(count: int, row: Ints, values: Floats, number: Ints) -> tuple[Rounds, Ints]:
    """Values sorted by row as [rows, most rounds], packed left and padded with NaN; round numbers beside, padded -1."""
    rounds = np.bincount(row, minlength=count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(rounds) - rounds, rounds)
    shape = (count, int(rounds.max(initial=0)))
    y, numbers = np.full(shape, math.nan), np.full(shape, -1, dtype=np.int64)
    y[row, place], numbers[row, place] = values, number
    return Rounds(y, rounds), numbers


def _typical(count: int, row: Ints, values: Floats) -> Floats:
    """The median of each row's values, 1 where there is none."""
    packed, _ = _pack(count, row, values, np.zeros(len(row), dtype=np.int64))
    out = np.ones(count)
    some = np.flatnonzero(packed.count > 0)
    out[some] = np.nanmedian(packed.y[some], axis=1)
    return out


def _names(count: int, row: Ints, code: Ints, names: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """The distinct names of each row; equal sets are one object."""
    found: list[list[int]] = [[] for _ in range(count)]
    for pair in np.unique(np.stack([row, code], axis=1), axis=0):
        found[pair[0]].append(int(pair[1]))
    shared: dict[tuple[int, ...], frozenset[str]] = {}
    return tuple(shared.setdefault(tuple(codes), frozenset(names[c] for c in codes)) for codes in found)


def load_both(
    old: str | os.PathLike[str], new: str | os.PathLike[str], *, allow_partial: bool = False
) -> tuple[Side, Side]:
    """Read two files, big ones at once in two processes. Raises RecordError; for old first if both are damaged."""
    try:
        size = os.path.getsize(old) + os.path.getsize(new)
    except OSError:
        size = 0  # for `load` to say what is wrong
    if size < PARALLEL_BYTES:
        return load(old, allow_partial=allow_partial), load(new, allow_partial=allow_partial)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        later = pool.submit(load, new, allow_partial=allow_partial)
        first = load(old, allow_partial=allow_partial)
        try:
            return first, later.result()
        except BrokenProcessPool:  # killed, for memory say: exit code 1 must not come of that
            return first, load(new, allow_partial=allow_partial)
