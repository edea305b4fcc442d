"""Compiling ahead of a run: who does what, what is given up, and that the run goes on whatever happens there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabench.case import Case
from fabench.cli import main
from fabench.compile_ahead import affordable, compile_ahead, work_of
from fabench.plan import PlannedRow
from fabench.resultfile import read
from fabench.worker_process import WorkerDiedError

CASES = [Case(1, 1, N, N, 16) for N in (16, 32, 48, 64, 80)]


class Compiler:
    """A worker that answers as it was told to: every pair, only the first, or by dying."""

    def __init__(self, temper: str = "works") -> None:
        self.temper, self.work = temper, list[dict[str, Any]]()
        self.events = list[dict[str, Any]]()
        self.killed = False

    def send(self, message: dict[str, Any]) -> None:
        if self.temper == "cannot start":
            raise WorkerDiedError("crashed", "gone")
        if message["cmd"] == "ahead":
            self.work = message["work"]
            answered = {"works": len(self.work), "stops after one": 1, "dies": 1, "fails": 0}[self.temper]
            self.events = [{"ev": "ready"}, *({"ev": "compiled", **pair} for pair in self.work[:answered])]
            if self.temper == "fails":
                self.events.append({"ev": "failed", "message": "no", "traceback": ""})

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        if not self.events and self.temper == "dies":
            raise WorkerDiedError("crashed", "gone")
        return self.events.pop(0) if self.events else None

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        assert self.killed


def compiled(workers: list[Compiler], processes: int, at_work: Callable[[str, Case], None] = lambda *_: None) -> str:
    waiting = iter(workers)
    work = [(case, "flex") for case in CASES]
    return compile_ahead(work, lambda: next(waiting), {"device": {}}, processes, 0.1, at_work)  # type: ignore[arg-type,return-value]


def test_work_is_dealt_out_like_cards_and_every_process_is_ended() -> None:
    workers, seen = [Compiler(), Compiler()], set[int]()

    said = compiled(workers, 2, lambda backend, case: seen.add(case.Nq))

    assert [[pair["key"]["Nq"] for pair in worker.work] for worker in workers] == [[16, 48, 80], [32, 64]]
    assert seen == {16, 32, 48, 64, 80}
    assert all(worker.killed for worker in workers)
    assert said == "compiled ahead: 5 of 5 cases in 0 s by 2 processes"


def test_no_more_processes_are_started_than_there_is_work() -> None:
    assert compiled([Compiler() for _ in CASES], 9).endswith("by 5 processes")


@pytest.mark.parametrize(("temper", "done"), [("dies", 3), ("stops after one", 3), ("fails", 2), ("cannot start", 2)])
def test_a_process_that_dies_or_falls_silent_is_given_up_with_what_it_had_left(temper: str, done: int) -> None:
    began = time.monotonic()
    workers = [Compiler(temper), Compiler()]

    assert compiled(workers, 2).startswith(f"compiled ahead: {done} of 5 cases")
    assert all(worker.killed for worker in workers)
    assert time.monotonic() - began < 2


def test_an_interrupt_ends_every_process() -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    workers = [Compiler(), Compiler()]
    with pytest.raises(KeyboardInterrupt):
        compiled(workers, 2, interrupted)
    assert all(worker.killed for worker in workers)


def test_a_pair_is_compiled_once_and_only_where_it_will_run_and_be_kept() -> None:
    def row(case: Case, backend: str, status: str | None = None) -> PlannedRow:
        return PlannedRow("0", case, backend, status, None, 0, 0.0, 0)  # type: ignore[arg-type]

    a, b = CASES[:2]
    rows = [row(a, "flex"), row(a, "naive"), row(b, "flex", "predicted_oom"), row(a, "flex"), row(b, "triton")]
    assert work_of(rows, lambda name: name != "naive") == [(a, "flex"), (b, "triton")]


@pytest.mark.parametrize(
    ("asked", "free_gib", "device", "expected"),
    [(8, 139, "cuda", 8), (8, 16, "cuda", 3), (8, 1, "cuda", 1), (8, 0, "cpu", 8)],
)
def test_device_memory_limits_the_processes(asked: int, free_gib: int, device: str, expected: int) -> None:
    assert affordable(asked, free_gib << 30, device) == expected


BACKEND = """
import pathlib, time
from fabench.backend import Backend, Facts, Prepared

HERE = pathlib.Path(__file__).parent

class Slow(Backend):
    facts = Facts("slow", directions=("forward",), keeps_compiled=True)

    def prepare(self, case, device, *, lse=False):
        import torch

        def call(q, k, v):
            kept = HERE / f"{case.Nq}.kept"
            if not kept.exists():
                time.sleep(0.5)
                kept.write_text("")
            return torch.softmax((q * case.softmax_scale) @ k.transpose(-1, -2), -1) @ v

        return Prepared(call)

SLOW = Slow()
"""
SUITE = """\
name: two
axes: {N: [32, 64], d: 16, dtype: fp32, batch: 1, heads: 1}
backends: [naive]
measure: {seconds: 0.05}
"""


def test_a_run_finds_what_was_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(BACKEND)
    (tmp_path / "two.yaml").write_text(SUITE)
    words = ["run", "two.yaml", "--backend-file", "slow.py", "--device", "cpu", "--out", "out.jsonl"]

    ended = CliRunner().invoke(main, [*words, "--compile-ahead", "2"])

    assert ended.exit_code == 0, ended.output
    assert {path.name for path in tmp_path.glob("*.kept")} == {"32.kept", "64.kept"}
    assert all(path.stat().st_mtime < (tmp_path / "out.jsonl").stat().st_mtime for path in tmp_path.glob("*.kept"))
    assert "compiled ahead: 2 of 2 cases in" in ended.stderr
    rows = [row for row in read(tmp_path / "out.jsonl").rows if row.backend == "slow"]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert all(row.compile_s is not None and row.compile_s < 0.4 for row in rows)


def test_compiling_ahead_needs_processes() -> None:
    ended = CliRunner().invoke(main, ["run", "smoke", "--in-process", "--compile-ahead", "2"])
    assert ended.exit_code == 2
    assert "--compile-ahead starts processes, got --in-process too" in ended.stderr
