"""The result files that the tests of tables, plots and reports look at."""

from __future__ import annotations

from pathlib import Path

import resultfiles as make
from fabench.case import Case
from fabench.records import Row


def sweep(path: Path) -> Path:
    """Three lengths, both masks, 16k tokens; five backends that end in every way a backend can."""
    rows: list[Row] = []
    for causal in (False, True):
        for N in (1024, 4096, 16384):
            case = make.case(N, batch=16384 // N, causal=causal)
            time = 4 * case.batch * case.heads * N * N * case.d / 400e12 * 1e9 * (0.5 if causal else 1)
            rows += [
                make.row(case, "sdpa-flash", time),
                _naive(case, time * 5),
                make.row(case, "sdpa-cudnn", time * 0.7, flags=["short"] if N == 1024 else []),
                _mine(case, time * 1.2),
                make.row(case, "xformers", status="unavailable", detail="cannot import xformers: no such module"),
            ]
    return make.build(path, rows)


def _naive(case: Case, time: float) -> Row:
    if case.Nq == 16384:
        return make.row(case, "naive", status="predicted_oom", detail="needs 68.7 GB, 40.1 GB are free")
    return make.row(case, "naive", time, flags=["throttled", "hot"] if case.Nq == 4096 else [])


def _mine(case: Case, time: float) -> Row:
    if not case.causal:
        return make.row(case, "mine_v1", time)
    parity = {"class": "A", "O": {"max_rho": 37.2, "rmse": 0.1, "max_abs": 0.5}}
    message = "O[1,3,77,5] is 0.5, must be 0.25: rho 37.2 > 4"
    return make.row(case, "mine_v1", status="wrong_result", detail=message, parity=parity)
