"""Synthetic result files for tests: `header()`, `env()`, `row()` with sensible defaults, and `write()` for the file.

Every builder takes the record's own field names as keywords. A row is a plain ok row of a small case unless told
otherwise; its numbers follow from `median_ns`, so that views of it can be checked by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fabench.case import Case, row_id
from fabench.cost import cost
from fabench.records import Canary, CostRecord, Env, Footer, Header, Memory, Parity, Record, Row, Utilization

PEAK_FLOPS = 989e12
GEMM_FLOPS = 800e12
COPY_BANDWIDTH = 4.3e12


def case(N: int = 1024, **fields: Any) -> Case:
    """A square case, batch 2 and heads 16 unless told otherwise."""
    return Case(**{"batch": 2, "heads": 16, "Nq": N, "Nk": N, "d": 128, **fields})


def header(**fields: Any) -> Header:
    """A header of a run of suite 'example' with baseline sdpa-flash."""
    defaults: dict[str, Any] = {
        "run_id": "run0",
        "session_id": "session0",
        "started": "2026-01-02T03:04:05+00:00",
        "argv": ["fabench", "run", "example"],
        "suite": {"name": "example", "baseline": "sdpa-flash"},
        "suite_hash": "0123456789ab",
        "planned_rows": 0,
        "rounds": 1,
        "seed": 0,
        "harness": {"version": "0.1.0"},
    }
    return Header.model_validate({**defaults, **fields})


def env(**fields: Any) -> Env:
    """An H200 as it might describe itself; `model=` renames the GPU."""
    identity = {"device_type": "cuda", "model": fields.pop("model", "NVIDIA H200"), "capability": (9, 0), "sms": 132}
    defaults: dict[str, Any] = {
        "env_id": "env0",
        "session_id": "session0",
        "peaks": {"flops": {"bf16": PEAK_FLOPS, "fp16": PEAK_FLOPS}, "bandwidth": 4.8e12, "source": "datasheet"},
        "identity": identity,
        "software": {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "driver": "580.95"},
        "session": {"host_hash": "host0"},
    }
    return Env.model_validate({**defaults, **fields})


def row(case: Case, backend: str = "sdpa-flash", median_ns: float = 1e6, **fields: Any) -> Row:
    """An ok row at `median_ns`, its interval 1 % wide; a status other than ok drops everything measured."""
    counted = cost(case)
    flops, ideal_bytes = counted.flops, counted.ideal_bytes
    seconds = median_ns / 1e9
    measured: dict[str, Any] = {
        "method_id": "burst0",
        "method": {"regime": "burst", "cache": "cold", "timer": "cuda_event", "inputs": "rotated", "rules": "1"},
        "parity": Parity.model_validate({"class": "A", "O": {"max_rho": 0.25, "rmse": 1e-3, "max_abs": 2e-3}}),
        "K": 1,
        "n": 3,
        "samples_ns": [median_ns * 0.995, median_ns, median_ns * 1.005],
        "quantiles": quantiles(median_ns),
        "cost": CostRecord.model_validate(vars(counted)),
        "utilization": Utilization(
            mfu=flops / seconds / PEAK_FLOPS,
            gemm=flops / seconds / GEMM_FLOPS,
            hbm=ideal_bytes / seconds / COPY_BANDWIDTH,
            roofline=max(flops / GEMM_FLOPS, ideal_bytes / COPY_BANDWIDTH) / seconds,
        ),
        "memory": Memory(peak_bytes=48 * 2**20, outputs_bytes=16 * 2**20, predicted_bytes=40 * 2**20),
        "stop_reason": "ci",
    }
    defaults: dict[str, Any] = {
        "row_id": row_id(case, backend),
        "round": 0,
        "attempt": 0,
        "key": case.key,
        "env_id": "env0",
        "backend": backend,
        "rerun": f"fabench run example --row-id {row_id(case, backend)} --in-process",
        "time": "2026-01-02T03:04:06+00:00",
        "status": "ok",
    }
    if fields.get("status", "ok") == "ok":
        defaults |= measured
    if isinstance(fields.get("detail"), str):
        fields["detail"] = {"message": fields["detail"]}
    return Row.model_validate({**defaults, **fields})


def quantiles(median_ns: float, half_width: float = 0.005) -> dict[str, float]:
    """Quantiles around a median, everything `half_width` away from it."""
    low, high = median_ns * (1 - half_width), median_ns * (1 + half_width)
    return {
        "min": low, "p10": low, "p25": low, "median": median_ns, "p75": high, "p90": high, "max": high,
        "ci_low": low, "ci_high": high,
    }  # fmt: skip


def canary(**fields: Any) -> Canary:
    """A canary at the start of round 0."""
    defaults: dict[str, Any] = {
        "env_id": "env0",
        "session_id": "session0",
        "time": "2026-01-02T03:04:05+00:00",
        "round": 0,
        "where": "start",
        "gemm_flops": {"bf16": GEMM_FLOPS},
        "copy_bandwidth": COPY_BANDWIDTH,
        "null_ns": 2000.0,
        "regime": "burst",
    }
    return Canary.model_validate({**defaults, **fields})


def records(
    rows: Sequence[Row], *, head: Header | None = None, envs: Sequence[Env] | None = None, complete: bool = True
) -> list[Record]:
    """The records of a whole, consistent file: header, envs, a canary, the rows, a footer that counts them."""
    latest = {(r.row_id, r.round): r.status for r in sorted(rows, key=lambda r: r.attempt)}
    counts = {status: list(latest.values()).count(status) for status in latest.values()}
    head = head or header(planned_rows=len(latest), rounds=len({r.round for r in rows}) or 1)
    footer = Footer(rows_written=len(rows), status_counts=counts, complete=complete, ended="2026-01-02T03:14:05+00:00")
    all_envs = [env()] if envs is None else list(envs)
    return [head, *all_envs, canary(env_id=all_envs[0].env_id), *rows, footer]


def write(path: Path, content: Iterable[Record | dict[str, Any] | str]) -> Path:
    """Write lines as given: records, plain JSON values (to damage one), or raw text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{_text(item)}\n" for item in content))
    return path


def build(path: Path, rows: Sequence[Row], **fields: Any) -> Path:
    """Write a whole, consistent file of `rows`; keywords as for `records`."""
    return write(path, records(rows, **fields))


def mutate(path: Path, change: Any) -> Path:
    """Rewrite a file in place: `change(list of JSON objects)` returns the new list (items may be raw text)."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return write(path, change(lines))


def _text(item: Record | dict[str, Any] | str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Record):
        return item.model_dump_json(by_alias=True, exclude_none=True)
    return json.dumps(item)
