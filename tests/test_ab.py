"""`run --ab`: what a side may be, the order of turns, and one real run of two kernels."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from fabench import ab, runner
from fabench.errors import RecordError, UsageError
from fabench.registry import FileSpec, from_file
from test_run import PLANTED, SUITE, fabench, records


def test_a_side_of_assignments_sets_variables_before_its_python_starts() -> None:
    side = ab.Side.parse("A=1 B=x=y")

    assert side.interpreter.variables == (("A", "1"), ("B", "x=y"))
    assert side.interpreter.environment()["B"] == "x=y"
    assert side.interpreter.python == sys.executable


def test_an_empty_side_changes_nothing() -> None:
    assert ab.Side.parse("").interpreter == ab.Side.parse(" ").interpreter


def test_a_side_that_is_a_virtual_environment_runs_its_own_python_and_fabench(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()

    side = ab.Side.parse(str(tmp_path))

    assert side.interpreter.python == str(tmp_path / "bin" / "python")
    assert "PYTHONPATH" not in side.interpreter.environment()


@pytest.mark.parametrize("text", ["nonsense", "A=1 nonsense", "kernel.py:", "kernel.txt"])
def test_anything_else_is_refused_by_its_own_words(text: str) -> None:
    with pytest.raises(UsageError, match="a side of --ab must be"):
        ab.Side.parse(text)


def test_a_kernel_is_compared_with_a_kernel() -> None:
    with pytest.raises(UsageError, match="both sides of --ab must name a kernel file or neither"):
        ab.parse_pair("k.py:f", "A=1")


def test_sides_take_turns_so_that_drift_hits_both_alike() -> None:
    assert list(ab.turns(4)) == [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1), (3, 1), (3, 0)]


def test_each_side_has_its_own_file_beside_the_other() -> None:
    assert ab.side_path(Path("x/out.jsonl"), 0) == Path("x/out.a.jsonl")
    assert ab.side_path(Path("x/out.v2"), 1) == Path("x/out.v2.b.jsonl")


def test_a_backend_file_may_name_its_backend() -> None:
    assert FileSpec.parse(f"mine={PLANTED}:good").name == "mine"
    assert [backend.name for backend in from_file(f"mine={PLANTED}:good")] == ["mine"]


def test_two_kernels_in_turns_give_two_files_of_one_session_and_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SUITE)
    done = fabench(
        "run", "tiny.yaml", "--device", "cpu", "--ab", f"{PLANTED}:good", f"{PLANTED}:zeros", "--rounds", "2",
        "--out", "ab.jsonl", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    files = [tmp_path / "ab.a.jsonl", tmp_path / "ab.b.jsonl"]
    headers = [json.loads(path.read_text().splitlines()[0]) for path in files]
    rows = [records(path, "row") for path in files]
    assert headers[0]["session_id"] == headers[1]["session_id"]
    assert [header["ab_side"] for header in headers] == ["a", "b"]
    assert {row["backend"] for side in rows for row in side} == {"candidate"}
    assert {row["row_id"] for row in rows[0]} == {row["row_id"] for row in rows[1]}
    assert [row["status"] for row in rows[0]] == ["ok", "ok"]
    assert [row["status"] for row in rows[1]] == ["wrong_result", "wrong_result"]
    turns = [line for line in done.stderr.splitlines() if line.startswith("round ")]
    assert turns == [f"round {r} of 2, side {side}" for r, side in ((1, "a"), (1, "b"), (2, "b"), (2, "a"))]
    assert "file" in done.stdout
    assert "ab.a" in done.stdout
    assert "ab.b" in done.stdout


@pytest.mark.parametrize("taken", ["ab.a.jsonl", "ab.b.jsonl"])
def test_a_file_in_the_way_of_one_side_leaves_nothing_of_the_other(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    sides = [SimpleNamespace(request=SimpleNamespace(out=tmp_path / "ab.jsonl", resume=None)) for _ in range(2)]

    with pytest.raises(UsageError, match=rf"{taken}' must not exist yet; choose another --out"):
        runner.open_writers(sides, "session0", ExitStack())  # type: ignore[arg-type]

    assert [path.name for path in tmp_path.iterdir()] == [taken]


def test_a_side_that_cannot_be_begun_takes_the_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(ready: SimpleNamespace, session_id: str, sides: list[SimpleNamespace]) -> SimpleNamespace:
        if ready is sides[1]:
            raise RecordError("the disk is full")
        (tmp_path / "ab.a.jsonl").touch()
        return SimpleNamespace(path=tmp_path / "ab.a.jsonl")

    monkeypatch.setattr(runner, "open_writer", begin)
    stack = SimpleNamespace(enter_context=lambda writer: writer)
    sides = [SimpleNamespace(request=SimpleNamespace(out=None, resume=None)) for _ in range(2)]

    with pytest.raises(RecordError):
        runner.open_writers(sides, "session0", stack)  # type: ignore[arg-type]

    assert not list(tmp_path.iterdir())


def test_sides_that_would_not_see_the_same_device_are_refused_by_what_differs(tmp_path: Path) -> None:
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE)

    done = fabench("run", suite, "--device", "cpu", "--ab", "OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2", cwd=tmp_path)

    assert done.returncode == 2
    assert "must see the same device, got 'threads' 1 and 2" in done.stderr
    assert not (tmp_path / "results").exists()
