"""What a file says of its run: what was asked for, the drift sensor, how it ended."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fabench.names import Regime, Status
from fabench.records.base import SCHEMA, Amount, Count, Index, Positive, Record


class Harness(Record):
    """Which fabench wrote the file."""

    version: str
    git_sha: str | None = None
    dirty: bool | None = None


class Header(Record):
    """The first line: what was asked for."""

    rec: Literal["header"] = "header"
    schema_: str = Field(default=SCHEMA, alias="schema")
    run_id: str
    session_id: str
    """Files of one session were measured interleaved on one device: their times may be compared closely."""
    ab_side: Literal["a", "b"] | None = None
    started: str
    """ISO 8601, UTC."""
    argv: list[str]
    suite: dict[str, Any]
    """The suite as resolved: every default filled in, the baseline included."""
    suite_hash: str
    filter: dict[str, Any] = Field(default_factory=dict)
    """What narrowed the suite: where, backend, shard, rows."""
    planned_rows: Index
    """Rows of one complete run: (case, backend) pairs x rounds."""
    rounds: Count
    seed: int
    harness: Harness


class Canary(Record):
    """A fixed piece of work timed now and then: the drift sensor, and the measured roofline."""

    rec: Literal["canary"] = "canary"
    env_id: str
    session_id: str
    time: str
    round: Index
    where: Literal["start", "between", "end"]
    gemm_flops: dict[str, Positive]
    """Measured GEMM FLOP/s by dtype."""
    copy_bandwidth: Positive | None = None
    """Measured copy, bytes read plus bytes written per second."""
    null_ns: Amount | None = None
    """Launch floor: time of an empty kernel."""
    regime: Regime


class Footer(Record):
    """The last line; a resumed file has one for each part, and the last counts."""

    rec: Literal["footer"] = "footer"
    rows_written: Index
    """Row records before this line."""
    status_counts: dict[Status, Index]
    complete: bool
    ended: str
