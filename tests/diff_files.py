"""Result files for the tests of `fabench diff`: rows over several rounds, made of the builders in `resultfiles`."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import resultfiles as rf
from fabench.case import Case
from fabench.cli import main
from fabench.records import Row

CASES = tuple(rf.case(N, causal=causal) for N in (1024, 2048, 4096, 8192) for causal in (False, True))
BACKENDS = ("sdpa-flash", "triton-flash", "online")
BACKEND_SPEED = {"sdpa-flash": 1.0, "triton-flash": 1.3, "online": 9.0}


def level_ns(case: Case, backend: str) -> float:
    """A plausible time: half of the canary's GEMM rate for the fastest backend."""
    pairs = case.Nq * case.Nk * (0.5 if case.causal else 1.0)
    return 4e9 * case.batch * case.heads * pairs * case.d / 400e12 * BACKEND_SPEED.get(backend, 1.0)


def rounds(
    case: Case,
    backend: str = "sdpa-flash",
    count: int = 10,
    *,
    factor: float = 1.0,
    noise: float = 0.003,
    seed: int = 0,
    **fields: Any,
) -> list[Row]:
    """One row in `count` rounds: level x factor with log-normal noise between rounds, fixed by `seed`."""
    rng = random.Random(f"{seed} {case.id} {backend}")
    medians = [level_ns(case, backend) * factor * math.exp(rng.gauss(0.0, noise)) for _ in range(count)]
    return [rf.row(case, backend, round(ns, 1), round=r, **fields) for r, ns in enumerate(medians)]


def failing(case: Case, backend: str, status: str, count: int = 10, message: str = "it broke") -> list[Row]:
    """One row that has no speed, in `count` rounds."""
    return [rf.row(case, backend, round=r, status=status, detail=message) for r in range(count)]


def table(
    seed: int,
    *,
    cases: Sequence[Case] = CASES,
    backends: Sequence[str] = BACKENDS,
    factors: Mapping[tuple[Case, str], float] | None = None,
    factor: float = 1.0,
    **fields: Any,
) -> list[Row]:
    """All cases and backends at `factor` times their level, those of `factors` at their own."""
    chosen = dict(factors or {})
    return [
        row
        for case in cases
        for backend in backends
        for row in rounds(case, backend, seed=seed, factor=chosen.get((case, backend), factor), **fields)
    ]


def write(path: Path, rows: Sequence[Row], *, session_id: str = "session0", **fields: Any) -> Path:
    """A whole file, measured in one session; fields of its `header`, its `canary` and its env may be given."""
    head = fields.pop("header", {})
    canary = fields.pop("canary", {})
    env_id = f"env-{session_id}"
    env = rf.env(env_id=env_id, session_id=session_id, **fields)
    rows = [row.model_copy(update={"env_id": env_id}) for row in rows]
    planned = len({(row.row_id, row.round) for row in rows})
    made = rf.records(
        rows,
        head=rf.header(
            session_id=session_id, planned_rows=planned, rounds=len({row.round for row in rows}) or 1, **head
        ),
        envs=[env],
    )
    made[2] = rf.canary(env_id=env_id, session_id=session_id, **canary)
    return rf.write(path, made)


def diff(*arguments: object) -> Result:
    """`fabench diff` in this process."""
    return CliRunner().invoke(main, ["diff", *map(str, arguments)], catch_exceptions=False)


def without_paths(text: str, folder: Path) -> str:
    """The text with the test's own folder left out, for golden files."""
    return text.replace(f"{folder}/", "")
