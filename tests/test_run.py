"""`fabench run` end to end on the CPU: real workers, planted bad kernels, a real result file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabench.cli import main

PLANTED = Path(__file__).parent / "planted" / "bad_backends.py"

SUITE = """
name: tiny
axes: {N: 64, d: 16, dtype: fp32, batch: 1, heads: 2}
backends: [naive]
measure: {seconds: 0.01}
"""

STATUS_OF = {
    "good": "ok",
    "zeros": "wrong_result",
    "empty": "wrong_result",
    "unscaled": "wrong_result",
    "aborts": "crashed",
    "segfaults": "crashed",
    "exits": "crashed",
    "leaves": "crashed",
    "hangs": "timeout",
    "refuses": "unsupported",
    "raises": "error",
    "exhausts": "oom",
    "stale": "wrong_result",
    "turns_bad": "wrong_result",
    "wrong_shape": "wrong_result",
    "wrong_dtype": "wrong_result",
    "naive": "ok",
}


def fabench(*arguments: str | Path, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fabench", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


def records(path: Path, kind: str) -> list[dict]:
    return [r for r in map(json.loads, path.read_text().splitlines()) if r["rec"] == kind]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, dict]]:
    """One run of every planted backend: the process, and its rows by backend."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "tiny.yaml").write_text(SUITE)
    limits = ["--timeout", "10", "--prepare-timeout", "10"]
    done = fabench(
        "run", "tiny.yaml", "--device", "cpu", "--backend-file", PLANTED, *limits, "--out", "out.jsonl", cwd=folder
    )
    return done, {row["backend"]: row for row in records(folder / "out.jsonl", "row")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of one run that went well."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(SUITE)
    done = fabench("run", "tiny.yaml", "--device", "cpu", "--out", "r.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "r.jsonl"


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of one run in which `raises` has failed."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "tiny.yaml").write_text(SUITE)
    planted = ["--backend-file", f"{PLANTED}:raises"]
    done = fabench("run", "tiny.yaml", "--device", "cpu", *planted, "--out", "r.jsonl", cwd=folder)
    assert done.returncode == 1, done.stderr
    return folder / "r.jsonl"


@pytest.mark.parametrize("backend", STATUS_OF)
def test_each_planted_backend_ends_as_its_own_status_and_the_run_goes_on(planted, backend: str) -> None:
    _, rows = planted

    assert rows[backend]["status"] == STATUS_OF[backend], rows[backend]["detail"]


def test_a_run_with_failures_exits_with_one(planted) -> None:
    assert planted[0].returncode == 1, planted[0].stderr


def test_only_rows_that_are_ok_have_a_speed(planted) -> None:
    for row in planted[1].values():
        assert (row.get("samples_ns") is not None) == (row["status"] == "ok")
        assert (row.get("quantiles") is not None) == (row["status"] == "ok")


def test_what_a_backend_prints_reaches_no_output_of_the_run(planted) -> None:
    assert "what it likes" not in planted[0].stdout + planted[0].stderr


def test_a_failure_says_what_and_how_to_repeat_it(planted) -> None:
    _, rows = planted

    assert rows["exits"]["detail"]["message"] == "the backend called sys.exit(3)"
    assert "SIGABRT" in rows["aborts"]["detail"]["message"]
    assert "N must be at most 16, got 64" in rows["refuses"]["detail"]["message"]
    assert "(1, 2, 64, 15)" in rows["wrong_shape"]["detail"]["message"]
    assert rows["zeros"]["detail"]["worst"]["tensor"] == "O"
    assert rows["zeros"]["rerun"].startswith("fabench run tiny.yaml --row-id ")
    assert "--in-process" in rows["zeros"]["rerun"]


def test_a_stale_output_is_seen_when_the_inputs_change(planted) -> None:
    assert "inputs changed in place" in planted[1]["stale"]["detail"]["message"]


def test_an_output_that_was_right_only_when_checked_is_seen(planted) -> None:
    assert "a timed output" in planted[1]["turns_bad"]["detail"]["message"]


def test_the_rerun_command_repeats_one_row_alone(planted, suite: Path) -> None:
    row = planted[1]["naive"]

    arguments = row["rerun"].split()[1:]
    done = fabench(*arguments, "--out", "again.jsonl", cwd=suite.parent)

    assert done.returncode == 0, done.stderr
    assert [r["row_id"] for r in records(suite.parent / "again.jsonl", "row")] == [row["row_id"]]


def test_resume_tries_the_failures_again_as_the_next_attempt(suite: Path, failed: Path) -> None:
    arguments = ["run", suite, "--device", "cpu", "--backend-file", f"{PLANTED}:raises"]
    out = Path(shutil.copy(failed, suite.parent))

    again = fabench(*arguments, "--resume", out, cwd=suite.parent)

    assert again.returncode == 1, again.stderr
    attempts = {(row["backend"], row["attempt"]) for row in records(out, "row")}
    assert attempts == {("naive", 0), ("raises", 0), ("raises", 1)}


def test_resume_tries_every_row_of_a_kernel_again_whose_file_has_changed(suite: Path) -> None:
    kernel = suite.with_name("mine.py")
    text = "import torch\ndef mine(q, k, v): return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
    kernel.write_text(text)
    arguments = ["run", suite, "--device", "cpu", "--backend-file", f"{kernel}:mine"]
    assert fabench(*arguments, "--out", "r.jsonl", cwd=suite.parent).returncode == 0
    kernel.write_text(text + "# faster\n")

    again = fabench(*arguments, "--resume", "r.jsonl", cwd=suite.parent)

    assert again.returncode == 0, again.stderr
    rows = records(suite.parent / "r.jsonl", "row")
    assert {(row["backend"], row["attempt"]) for row in rows} == {("naive", 0), ("mine", 0), ("mine", 1)}
    assert len({row["backend_sha256"] for row in rows if row["backend"] == "mine"}) == 2


def test_a_dry_run_of_a_file_to_continue_shows_what_is_left_of_it(suite: Path, failed: Path) -> None:
    arguments = ["run", suite, "--device", "cpu", "--backend-file", f"{PLANTED}:raises"]
    [owed] = [row for row in records(Path(shutil.copy(failed, suite.parent)), "row") if row["status"] == "error"]

    left = fabench(*arguments, "--resume", "r.jsonl", "--dry-run", cwd=suite.parent)
    other = fabench(*arguments[:-2], "--resume", "r.jsonl", "--dry-run", cwd=suite.parent)

    assert left.returncode == 0, left.stderr
    assert "1 row to run, 0 skipped" in left.stdout
    assert owed["row_id"] in left.stdout
    assert "1 of 2 rows are in 'r.jsonl' and stay as they are" in left.stdout
    assert other.returncode == 2
    assert "'filter.backend_file' must be the one to continue" in other.stderr
    assert "got nothing" in other.stderr


def test_a_run_like_an_older_file_takes_its_K_and_n(suite: Path, finished: Path) -> None:
    old = shutil.copy(finished, suite.parent / "old.jsonl")
    text = old.read_text()
    [row] = records(old, "row")
    old.write_text(text.replace(f'"K":{row["K"]},', '"K":3,').replace(f'"n":{row["n"]},', '"n":11,'))

    done = fabench("run", suite, "--device", "cpu", "--like", old, "--out", "new.jsonl", cwd=suite.parent)

    assert done.returncode == 0, done.stderr
    [new] = records(suite.parent / "new.jsonl", "row")
    assert (new["K"], new["n"]) == (3, 11)


def test_resume_refuses_another_suite(suite: Path, finished: Path) -> None:
    shutil.copy(finished, suite.parent)
    other = suite.with_name("other.yaml")
    other.write_text(SUITE.replace("N: 64", "N: 32"))

    done = fabench("run", other, "--device", "cpu", "--resume", "r.jsonl", cwd=suite.parent)

    assert done.returncode == 2
    assert "'axes.N' must be the one to continue, [64], got [32]" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_check_flags_every_row_unchecked(suite: Path) -> None:
    done = fabench("run", suite, "--device", "cpu", "--no-check", "--out", "n.jsonl", cwd=suite.parent)

    assert done.returncode == 0, done.stderr
    assert all("unchecked" in row["flags"] for row in records(suite.parent / "n.jsonl", "row"))


def test_nothing_that_can_run_exits_with_two(suite: Path) -> None:
    done = fabench("run", suite, "--device", "cpu", "--backend", "flash-attn", "--out", "n.jsonl", cwd=suite.parent)

    assert done.returncode == 2
    assert "no row could run" in done.stderr


def test_an_unwritable_path_is_an_error_before_any_work(suite: Path) -> None:
    done = fabench("run", suite, "--device", "cpu", "--out", "/proc/nowhere/x.jsonl", cwd=suite.parent)

    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_that_begin_in_the_same_second_write_a_file_each(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(suite.parent)
    monkeypatch.setattr("fabench.runner.now", lambda: "2026-01-02T03:04:05+00:00")
    runs = [CliRunner().invoke(main, ["run", str(suite), "--device", "cpu"]) for _ in range(2)]

    assert [run.exit_code for run in runs] == [0, 0]
    [folder] = (suite.parent / "results").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["tiny-20260102T030405Z-2.jsonl", "tiny-20260102T030405Z.jsonl"]


@pytest.mark.parametrize("group", [True, False], ids=["the whole group", "the parent alone"])
def test_an_interrupt_leaves_a_valid_file_and_no_worker(suite: Path, group: bool) -> None:
    command = [sys.executable, "-m", "fabench", "run", str(suite), "--device", "cpu", "--out", "i.jsonl"]
    command += ["--backend-file", f"{PLANTED}:hangs"]
    parent = subprocess.Popen(
        command, cwd=suite.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    workers = wait_for_worker(parent.pid)
    time.sleep(1.0)
    (os.killpg if group else os.kill)(parent.pid, signal.SIGINT)
    parent.communicate(timeout=30)

    assert parent.returncode == 130
    assert not any(alive(worker) for worker in workers)
    assert records(suite.parent / "i.jsonl", "footer")[-1]["complete"] is False
    assert fabench("validate", "i.jsonl", cwd=suite.parent).returncode == 0


def test_a_killed_parent_leaves_no_worker_behind(suite: Path) -> None:
    command = [sys.executable, "-m", "fabench", "run", str(suite), "--device", "cpu", "--out", "k.jsonl"]
    command += ["--backend-file", f"{PLANTED}:hangs"]
    parent = subprocess.Popen(command, cwd=suite.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers = wait_for_worker(parent.pid)

    parent.kill()
    parent.wait()

    deadline = time.monotonic() + 10
    while any(alive(w) for w in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)


def wait_for_worker(parent: int) -> list[int]:
    """The worker's pid, once there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        workers = [int(pid) for pid in children if "fabench.worker" in command_line(int(pid))]
        if workers:
            return workers
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
