"""How much the same row moves from session to session on one kind of card: measured by A/A sessions, kept in a file.

A session is one run of a suite with two or more rounds. `results/<gpu>/calibration-noise.json` holds of each session
every row's mean and variance of ln t over rounds; `estimate` turns sessions into a variance tau2 by class of rows.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fabench.device import Device
from fabench.diff.side import Side
from fabench.diff.tau import Tau, between_cards, between_sessions
from fabench.diff.winsor import pooled_variance
from fabench.errors import RecordError, UsageError
from fabench.input_files import read_small
from fabench.names import Regime
from fabench.output_files import writing
from fabench.records import Identity
from fabench.records.base import Amount

APART = timedelta(hours=1)
"""Two runs on one card count as two sessions if the machine was booted between them or they began this far apart."""
BUCKETS_NS: tuple[tuple[str, float], ...] = (
    ("<100us", 1e5),
    ("100us-1ms", 1e6),
    ("1-10ms", 1e7),
    (">10ms", math.inf),
)
"""Classes of rows by time: name, upper end in ns."""

Kind = Literal["session", "device"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class RowNoise(_Model):
    """One row in one session."""

    row_id: str
    regime: Regime
    mean_ln_ns: float
    """Mean over rounds of ln of the round's median ns."""
    variance: Amount
    """Between those rounds."""
    rounds: int = Field(ge=2)


class SessionNoise(_Model):
    """One A/A session."""

    session_id: str
    started: str
    boot_id: str | None = None
    gpu_uuid_hash: str | None = None
    driver: str | None = None
    torch: str
    suite_hash: str
    rows: list[RowNoise]


class NoiseFile(_Model):
    """What `calibration-noise.json` holds."""

    schema_: Literal["fabench-noise/1.0"] = Field(default="fabench-noise/1.0", alias="schema")
    model: str
    """The card, as identities name it."""
    sessions: list[SessionNoise] = Field(min_length=1)


@dataclass(frozen=True)
class Noise:
    """A noise file, estimated."""

    path: str
    model: str
    classes: dict[tuple[Kind, Regime, str], Tau]
    """(kind, regime, time bucket) -> variance. A class is absent if too little was measured."""
    sessions: int
    """Sessions that count: see `APART`."""
    cards: int
    newest: datetime
    drivers: frozenset[str]

    def tau(self, kind: Kind, regime: Regime | None, ns: float) -> Tau | None:
        """The variance for a row of `ns` in `regime`, or None if it is not calibrated."""
        return None if regime is None else self.classes.get((kind, regime, bucket(ns)))

    def warnings(self, now: datetime, driver: str | None, days: int) -> list[str]:
        """Sentences about a calibration that may no longer hold."""
        out = []
        if (age := (now - self.newest).days) > days:
            out.append(
                f"noise calibration {self.path} is {age} days old (limit {days}); run `fabench calibrate --noise`"
            )
        if driver is not None and self.drivers and driver not in self.drivers:
            known = ", ".join(sorted(self.drivers))
            out.append(
                f"noise calibration {self.path} was made with driver {known}, the new file has {driver}; "
                "run `fabench calibrate --noise`"
            )
        return out


def bucket(ns: float) -> str:
    """The class of a row that takes `ns`."""
    return next(name for name, top in BUCKETS_NS if ns < top or math.isinf(top))


def default_path(identity: Identity, root: Path = Path("results")) -> Path:
    """Where a card's noise file lies: <root>/<gpu>/calibration-noise.json."""
    return root / Device(identity.device_type, identity.model).slug / "calibration-noise.json"


def find(identity: Identity) -> Path | None:
    """The card's noise file: under ./results, else shipped with fabench; None if there is none."""
    package = Path(__file__).resolve().parents[1]
    roots = (Path("results"), package / "data", package.parents[1] / "results")
    return next((path for root in roots if (path := default_path(identity, root)).is_file()), None)


def observe(side: Side) -> SessionNoise:
    """What one result file says of its session.

    Raises UsageError if it has several sessions, no time at which it began, or no row of 2 rounds.
    """
    envs = list(side.file.envs.values())
    try:
        _time(side.file.header.started)
    except ValueError as error:  # kept, it would spoil the noise file for good
        raise UsageError(
            f"'{side.path}' must have begun at an ISO 8601 time to calibrate noise with: {error}"
        ) from None
    if len({env.session_id for env in envs}) != 1:
        raise UsageError(f"'{side.path}' must hold one session to calibrate noise with, got {len(envs)}")
    rows = []
    for index, meaning in enumerate(side.rows):
        count, regime = int(side.times.count[index]), side.regime(index)
        if count < 2 or regime is None:
            continue
        y = side.times.y[index : index + 1, :count]
        variance, _ = pooled_variance(y, y[:, :1])
        rows.append(
            RowNoise(
                row_id=meaning.row_id,
                regime=regime,
                mean_ln_ns=float(y.mean()),
                variance=float(variance[0]),
                rounds=count,
            )
        )
    if not rows:
        raise UsageError(f"'{side.path}' must hold a row timed in 2 rounds or more to calibrate noise with, got none")
    env = envs[0]
    return SessionNoise(
        session_id=env.session_id,
        started=side.file.header.started,
        boot_id=env.session.boot_id,
        gpu_uuid_hash=env.session.gpu_uuid_hash,
        driver=env.software.driver,
        torch=env.software.torch,
        suite_hash=side.file.header.suite_hash,
        rows=rows,
    )


def append(path: str | os.PathLike[str], sides: Iterable[Side]) -> NoiseFile:
    """Add sessions to a noise file, made if it is not there; one already in it is replaced. Returns what it holds now.

    Raises UsageError if a session is of another card than the file.
    """
    sides = list(sides)
    models = {env.identity.model for side in sides for env in side.file.envs.values()}
    known = read(path) if os.path.exists(path) else None
    if len(models | ({known.model} if known else set())) != 1:
        held = f", {known.model}" if known else ""
        raise UsageError(f"'{path}' must hold one model of card{held}, got {', '.join(sorted(models))}")
    sessions = {session.session_id: session for session in (known.sessions if known else [])}
    sessions |= {session.session_id: session for session in map(observe, sides)}
    file = NoiseFile(model=models.pop(), sessions=sorted(sessions.values(), key=lambda s: s.started))
    scratch = Path(f"{os.fspath(path)}.tmp")
    text = file.model_dump_json(indent=1, exclude_none=True, by_alias=True) + "\n"
    with writing(Path(path)):
        try:
            scratch.write_text(text, encoding="utf-8")
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    return file


def read(path: str | os.PathLike[str]) -> NoiseFile:
    """The file's content. Raises RecordError if it cannot be read or does not validate."""
    try:
        data = json.loads(read_small(path), parse_constant=_refuse)
        return NoiseFile.model_validate(data)
    except OSError as error:
        raise RecordError(f"'{os.fspath(path)}' cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"'{place}': {first['msg'].lower()}; is this a noise file?", os.fspath(path)) from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}", os.fspath(path), getattr(error, "lineno", None)) from None


def _refuse(token: str) -> float:
    raise ValueError(f"'{token}' must be a number")


def load(path: str | os.PathLike[str], sessions: int, cards: int) -> Noise:
    """A noise file with its variances; classes measured in fewer sessions or cards are left out. Raises RecordError."""
    file = read(path)
    try:
        return estimate(os.fspath(path), file, sessions, cards)
    except ValueError as error:
        raise RecordError(f"a session's 'started' must be an ISO 8601 time: {error}", os.fspath(path)) from None


def estimate(path: str, file: NoiseFile, sessions: int, cards: int) -> Noise:
    """The variances that a file's sessions give."""
    counted = distinct(file.sessions)
    classes: dict[tuple[Kind, Regime, str], Tau] = {}
    for key, rows in _by_class(counted).items():
        if (tau := between_sessions(rows)) and tau.groups >= sessions:
            classes["session", *key] = tau
            if (wide := between_cards(rows, tau)) and wide.groups >= cards:
                classes["device", *key] = wide
    newest = max(_time(s.started) for s in counted)
    return Noise(
        path=path,
        model=file.model,
        classes=classes,
        sessions=len(counted),
        cards=len({s.gpu_uuid_hash for s in counted}),
        newest=newest,
        drivers=frozenset(s.driver for s in counted if s.driver),
    )


def distinct(sessions: Sequence[SessionNoise]) -> list[SessionNoise]:
    """Those that count as sessions of their own, in order of time."""
    counted: list[SessionNoise] = []
    for session in sorted(sessions, key=lambda s: _time(s.started)):
        same_boot = [c for c in counted if c.gpu_uuid_hash == session.gpu_uuid_hash and c.boot_id == session.boot_id]
        if not same_boot or _time(session.started) - _time(same_boot[-1].started) >= APART:
            counted.append(session)
    return counted


def _by_class(sessions: Sequence[SessionNoise]) -> dict[tuple[Regime, str], list[tuple[str, str, int, RowNoise]]]:
    """(regime, bucket) -> (row, card, session number, numbers). A row stays in the class of its mean over sessions."""
    level: dict[tuple[str, Regime], list[float]] = {}
    for session in sessions:
        for row in session.rows:
            level.setdefault((row.row_id, row.regime), []).append(row.mean_ln_ns)
    out: dict[tuple[Regime, str], list[tuple[str, str, int, RowNoise]]] = {}
    for number, session in enumerate(sessions):
        for row in session.rows:
            means = level[row.row_id, row.regime]
            place = row.regime, bucket(math.exp(min(sum(means) / len(means), 700.0)))
            out.setdefault(place, []).append((row.row_id, session.gpu_uuid_hash or "", number, row))
    return out


def _time(text: str) -> datetime:
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
