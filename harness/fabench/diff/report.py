"""A comparison as plain data: every number, threshold and version. What `--json` writes and other views read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import fabench
from fabench.diff.compare import Comparison, RowDiff
from fabench.diff.cross import Cross
from fabench.diff.gate import Gate, gates
from fabench.diff.geomean import Geomean
from fabench.diff.side import Side
from fabench.diff.verdicts import MEANING, VERDICTS
from fabench.text import counted

SCHEMA = "fabench-diff/1.0"


@dataclass(frozen=True)
class Report:
    """A finished comparison with everything a view shows of it."""

    found: Comparison
    gate: Gate
    geomeans: tuple[Geomean, ...]
    notes: tuple[str, ...]
    cross: Cross | None = None

    def ordered(self) -> list[RowDiff]:
        """The rows worst first: by verdict, what gates before what is waived, then by ratio and name."""
        place = {verdict: index for index, verdict in enumerate(VERDICTS)}

        def key(row: RowDiff) -> tuple[int, bool, float, str, str]:
            ratio = self.found.ratio(row)
            return (
                place[row.verdict],
                row.waiver is not None,
                -ratio[0] if ratio else 0.0,
                row.pair.backend,
                row.pair.row_id,
            )

        return sorted(self.found.rows, key=key)


def summary(report: Report) -> str:
    """One line: the decision, why, and the rows by verdict."""
    counts, gate = report.found.counts(), report.gate
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    why = f" ({'; '.join(gate.reasons)})" if gate.reasons else ""
    return f"{gate.word}{why}: {counted(len(report.found.rows), 'row')}: {verdicts}; exit code {gate.code}"


def as_json(report: Report) -> dict[str, Any]:
    """Plain JSON values; a number that is not known is null."""
    found = report.found
    counts = found.counts()
    noise = found.options.noise
    return {
        "schema": SCHEMA,
        "fabench": fabench.__version__,
        "generated": found.options.now.isoformat(timespec="seconds"),
        "old": _side(found.old),
        "new": _side(found.new),
        "thresholds": found.options.limits.as_dict(),
        "fail_on": sorted(found.options.fail_on),
        "where": str(found.options.where) if found.options.where else None,
        "cross_gpu": found.options.cross_gpu,
        "gate_efficiency": found.options.gate_efficiency,
        "calibration": noise and {"path": noise.path, "sessions": noise.sessions, "cards": noise.cards},
        "prior": {
            name: value if math.isfinite(value) else None for name, value in asdict(found.evidence.prior).items()
        },
        "tests": found.evidence.tests,
        "exit_code": report.gate.code,
        "exit_reasons": list(report.gate.reasons),
        "summary": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "meaning": {verdict: MEANING[verdict] for verdict in VERDICTS if counts[verdict]},
        "geomeans": [asdict(geomean) for geomean in report.geomeans],
        "rows": list(rows_json(found, report.ordered())),
        "anchor": report.cross.anchor if report.cross else None,
        "cross": _cross(report.cross) if report.cross else None,
        "winners": _winners(report.cross) if report.cross else None,
        "notes": list(report.notes),
    }


def rows_json(found: Comparison, rows: Iterable[RowDiff]) -> Iterator[dict[str, Any]]:
    """Rows with all their numbers."""
    columns = _columns(found)
    for row in rows:
        yield _row_json(found, row, columns)


def _row_json(found: Comparison, row: RowDiff, columns: dict[str, list[Any]]) -> dict[str, Any]:
    pair, ratio = row.pair, found.ratio(row)
    return {
        "row_id": pair.row_id,
        "backend": pair.backend,
        "case": pair.case.label(),
        "key": pair.case.key,
        "verdict": row.verdict,
        "gates": gates(found, row),
        "reason": row.reason or None,
        "waiver": row.waiver.text() if row.waiver else None,
        "old_status": row.old_status,
        "new_status": row.new_status,
        **_times(found.old, pair.old, "old"),
        **_times(found.new, pair.new, "new"),
        "ratio": ratio[0] if ratio else None,
        "ratio_low": ratio[1] if ratio else None,
        "ratio_high": ratio[2] if ratio else None,
        "rounds_needed": row.needed,
        "rerun": found.new.rows[pair.new].rerun if pair.new is not None else found.old.rows[pair.old or 0].rerun,
        "evidence": _evidence(found, row.at, columns) if row.at is not None else None,
    }


def _times(side: Side, place: int | None, which: str) -> dict[str, Any]:
    """Median ns over rounds, and the number of rounds."""
    if place is None:
        return {f"{which}_ns": None, f"{which}_rounds": 0, f"{which}_flags": []}
    return {
        f"{which}_ns": side.median_of(place),
        f"{which}_rounds": int(side.times.count[place]),
        f"{which}_flags": list(side.flags[place]),
    }


def _columns(found: Comparison) -> dict[str, list[Any]]:
    """The arrays of the evidence and its context as lists, infinite and NaN as None."""
    known = {
        "margin": found.context.margin,
        "equivalence_margin": found.context.equivalence,
        "session_variance": found.context.tau2,
        "session_nu": found.context.tau_nu,
        "timer_floor": found.context.floor,
        "tested": found.context.tested,
    }
    arrays = {name: value for name, value in vars(found.evidence).items() if isinstance(value, np.ndarray)} | known
    return {name: [x if math.isfinite(x) else None for x in array.tolist()] for name, array in arrays.items()}


def _evidence(found: Comparison, at: int, columns: dict[str, list[Any]]) -> dict[str, Any]:
    link = found.links[at]
    return {
        **{name: values[at] for name, values in columns.items()},
        "margin_kind": link.margin,
        "relation": link.relation.kind,
        "regime": link.regime,
        "bound": link.bound,
        "canary_move": link.move,
    }


def _cross(cross: Cross) -> list[dict[str, Any]]:
    out = []
    for row in cross.rows:
        values = {k: v for k, v in vars(row).items() if k != "row"}
        out.append({"row_id": row.row.pair.row_id, **values})
    return out


def _winners(cross: Cross) -> list[dict[str, Any]]:
    return [
        {"case": winner.case.label(), "old": winner.old, "new": winner.new, "changed": winner.certain}
        for winner in cross.winners
    ]


def _side(side: Side) -> dict[str, Any]:
    header = side.file.header
    return {
        "path": side.path,
        "run_id": header.run_id,
        "session_id": header.session_id,
        "started": header.started,
        "suite": header.suite.get("name"),
        "suite_hash": header.suite_hash,
        "rounds": header.rounds,
        "rows": len(side.rows),
        "filter": header.filter,
        "harness": header.harness.model_dump(),
        "envs": [env.model_dump(mode="json", exclude={"rec"}) for env in side.file.envs.values()],
        "truncated": side.file.truncated,
    }
