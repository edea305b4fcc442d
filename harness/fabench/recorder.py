"""Turns what workers report into records: adds cost, utilization, telemetry and flags, writes, and shows progress."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fabench.backend import Facts
from fabench.case import Case
from fabench.cost import cost
from fabench.measure.method import method_id
from fabench.measure.telemetry import Poller
from fabench.measure.utilization import implausible, utilization
from fabench.memory_growth import MemoryGrowth
from fabench.names import Flag, Status
from fabench.plan import PlannedRow
from fabench.progress import Progress
from fabench.records import Canary, CostRecord, Env, Method, Peaks, Row
from fabench.resultfile import Writer
from fabench.runrecords import now
from fabench.stats import quantiles
from fabench.supervised import Spans
from fabench.text import printable

SAMPLE_FIELDS = ("samples_ns", "quantiles", "K", "n", "stop_reason", "utilization", "telemetry")
"""What a row that is not ok must not have: a failure never has a speed."""


@dataclass
class Recorder:
    """The sink of one run's outcomes."""

    writer: Writer
    env: Env
    progress: Progress
    poller: Poller
    rerun: Callable[[str], list[str]]
    """The command line that repeats a row, by its row_id."""
    limits: Peaks
    """What no call can exceed."""
    facts: dict[str, Facts]
    """By backend."""
    sha256: dict[str, str | None]
    """Digest of each user backend's file, by backend."""
    canary_gemm: dict[str, float] = field(default_factory=dict)
    canary_copy: float | None = None
    counts: Counter[Status] = field(default_factory=Counter)
    growth: MemoryGrowth = field(default_factory=MemoryGrowth)
    described: dict[str, dict[str, Any]] = field(default_factory=dict)

    def working(self, planned: PlannedRow | None, case: Case) -> None:
        """Pass on what is at work."""
        self.progress.working(planned.backend if planned else None, case)

    def canary(self, reading: dict[str, Any], where: str, round_: int) -> None:
        """Write a canary; its rates are the measured peaks of the rows that follow."""
        self.canary_gemm, self.canary_copy = reading["gemm_flops"], reading["copy_bandwidth"]
        self.writer.write(
            Canary(
                env_id=self.env.env_id,
                session_id=self.env.session_id,
                time=now(),
                round=round_,
                where=where,  # type: ignore[arg-type]
                regime=reading["regime"],
                gemm_flops=self.canary_gemm,
                copy_bandwidth=self.canary_copy,
                null_ns=reading["null_ns"],
            )
        )

    def row(self, planned: PlannedRow, round_: int, order: int, fields: dict[str, Any], spans: Spans) -> None:
        """Complete, check and write one row."""
        row = self._complete(planned, round_, order, dict(fields), spans)
        self.writer.write(row)
        self.counts[row.status] += 1
        self.progress.row(row)

    def skipped(self, planned: PlannedRow, round_: int) -> None:
        """Write a row that the plan has decided: unsupported, unavailable or predicted_oom."""
        assert planned.status is not None
        self.row(planned, round_, -1, {"status": planned.status, "detail": {"message": planned.detail or ""}}, ())

    def _complete(self, planned: PlannedRow, round_: int, order: int, fields: dict[str, Any], spans: Spans) -> Row:
        case = planned.case
        problem = cost(case)
        flags: set[Flag] = set(fields.pop("flags", ()))
        if fields.get("memory") is not None:
            fields["memory"]["predicted_bytes"] = planned.predicted_bytes
            self.described[planned.row_id] = {"memory": fields["memory"], "kernels": fields.get("kernels")}
        elif fields["status"] == "ok":
            fields |= self.described.get(planned.row_id, {})
        if fields.get("detail"):
            fields["detail"] = {k: printable(v) if isinstance(v, str) else v for k, v in fields["detail"].items()}
        if fields["status"] == "ok":
            self._measured(planned, fields, flags, spans)
        if fields["status"] != "ok":
            for name in SAMPLE_FIELDS:
                fields.pop(name, None)
        method = fields.get("method")
        return Row(
            row_id=planned.row_id,
            round=round_,
            attempt=self.writer.next_attempt(planned.row_id, round_),
            key=case.key,
            env_id=self.env.env_id,
            backend=planned.backend,
            backend_sha256=self.sha256.get(planned.backend),
            rerun=shlex.join(self.rerun(planned.row_id)),
            time=now(),
            method_id=None if method is None else method_id(Method(**method)),
            order=None if order < 0 else order,
            cost=CostRecord(**vars(problem)),
            flags=sorted(flags),
            **fields,
        )

    def _measured(self, planned: PlannedRow, fields: dict[str, Any], flags: set[Flag], spans: Spans) -> None:
        """Quantiles, utilization, telemetry and the flags that follow; a speed above a peak ends as an error."""
        case = planned.case
        fields["quantiles"] = quantiles(fields["samples_ns"])
        seconds = fields["quantiles"]["median"] * 1e-9
        problem = cost(case)
        cold = fields["method"]["cache"] == "cold"
        least_s = fields["quantiles"]["min"] * 1e-9
        if message := implausible(problem, seconds, case.dtype, self.limits, cold=cold, least_s=least_s):
            fields["status"], fields["detail"] = "error", {"message": f"implausible: {message}"}
            return
        rate = "tf32" if self.facts[planned.backend].accuracy_for(case.dtype) == "A-tf32" else case.dtype
        fields["utilization"] = utilization(
            problem, seconds, rate, self.env.peaks, self.canary_gemm.get(case.dtype), self.canary_copy
        )
        fields["telemetry"], seen = self.poller.during(spans)
        flags |= seen
        memory = fields.get("memory") or {}
        claims_linear = self.facts[planned.backend].memory == "flash"
        if claims_linear and self.growth.is_wrong(case, planned.backend, memory.get("peak_bytes")):
            flags.add("wrong_memory")
