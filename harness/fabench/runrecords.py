"""The records that frame a run: its header, where it measures, which fabench it is, and whether a file may go on."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import fabench
from fabench.case import digest
from fabench.errors import RecordError
from fabench.measure.peaks import peaks
from fabench.probe import Probe
from fabench.records import Env, Harness, Header
from fabench.resultfile import ResultFile
from fabench.suite import Suite
from fabench.suite_yaml import shown

LONG = 400
"""Characters of a value in a sentence about two that differ: the difference may be at its end."""


def now() -> str:
    """The time in UTC, ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def header(
    suite: Suite,
    argv: Sequence[str],
    filter_: dict[str, Any],
    rows: int,
    session_id: str,
    ab_side: Literal["a", "b"] | None = None,
) -> Header:
    """The first line of a new file, for `rows` rows a round."""
    return Header(
        run_id=uuid.uuid4().hex,
        session_id=session_id,
        ab_side=ab_side,
        started=now(),
        argv=list(argv),
        suite=suite.resolved,
        suite_hash=suite.hash,
        filter=filter_,
        planned_rows=rows * suite.measure.rounds,
        rounds=suite.measure.rounds,
        seed=suite.seed,
        harness=harness(),
    )


def env_record(probe: Probe, session_id: str) -> Env:
    """Where this run measures."""
    parts = {
        "identity": probe.identity.model_dump(mode="json"),
        "software": probe.software.model_dump(mode="json"),
        "session": probe.session.model_dump(mode="json"),
    }
    return Env(
        env_id=digest([session_id, parts]),
        session_id=session_id,
        peaks=peaks(probe.device),
        identity=probe.identity,
        software=probe.software,
        session=probe.session,
    )


def check_same(begun: ResultFile, suite: Suite, filter_: dict[str, Any], env: Env) -> None:
    """Raise RecordError unless the file to continue has this suite, filter, hardware and software."""
    path, first = begun.path, begun.header
    asked = flat({**suite.resolved, "filter": filter_})
    was = flat({**first.suite, "filter": first.filter})
    if first.suite_hash != suite.hash or first.filter != filter_:
        key = next(key for key in [*was, *asked] if key != "description" and was.get(key) != asked.get(key))
        raise RecordError(
            f"'{key}' must be the one to continue, {shown(was.get(key), LONG)}, got {shown(asked.get(key), LONG)}; "
            "name the same suite and options, or start a new file",
            path,
            1,
        )
    for old in begun.envs.values():
        for part in ("identity", "software"):
            then, today = getattr(old, part).model_dump(), getattr(env, part).model_dump()
            if differing := [key for key in then if then[key] != today[key]]:
                key = differing[0]
                raise RecordError(
                    f"env {part}.{key} must be the same to continue, was {shown(then[key], LONG)} and is "
                    f"{shown(today[key], LONG)}; start a new file",
                    path,
                )


def flat(resolved: dict[str, Any], within: str = "") -> dict[str, Any]:
    """`{"measure": {"rounds": 1}}` as `{"measure.rounds": 1}`."""
    found: dict[str, Any] = {}
    for key, value in resolved.items():
        found |= flat(value, f"{within}{key}.") if isinstance(value, dict) else {within + key: value}
    return found


def harness() -> Harness:
    """This fabench: its version, and the commit if it runs from a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return Harness(version=fabench.__version__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    try:
        sha = git("rev-parse", "HEAD") or None
        return Harness(version=fabench.__version__, git_sha=sha, dirty=bool(git("status", "--porcelain", "-uno")))
    except OSError:
        return Harness(version=fabench.__version__)
