"""A hard limit that a backend lowers for good costs no other backend a row."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fabench.process_settings import hard_limits, lowered
from fabench.resultfile import read
from fabench.settings import Settings
from test_supervisor import Harness, planned

SETS = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"
CAPPED = """
import resource

def capped(q, k, v):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
    return (q.float() @ k.float().mT / q.shape[-1] ** 0.5).softmax(-1).matmul(v.float()).to(q.dtype)
"""
OPENS = """
def opens(q, k, v):
    files = [open("/dev/null") for _ in range(300)]
    for file in files:
        file.close()
    return (q.float() @ k.float().mT / q.shape[-1] ** 0.5).softmax(-1).matmul(v.float()).to(q.dtype)
"""
SUITE = "name: one\naxes: {N: [16], d: [8], dtype: [fp32], batch: [1], heads: [1]}\nbackends: [naive]\n"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fabench", "run", "one.yaml", "--device", "cpu", "--seconds", "0.01", *options],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder,
    )  # fmt: skip


def test_who_spoils_a_shared_worker_is_run_again_in_one_of_its_own() -> None:
    harness = Harness({"a": ["ok"], "bad": ["spoils", "ok"], "c": ["ok"]})

    assert harness.run(planned("a"), planned("bad"), planned("c")) == {"a": "ok", "bad": "ok", "c": "ok"}
    assert len(harness.workers) == 3  # shared, without it, its own
    assert harness.ledger.rows["bad"]["flags"] == ["not_interleaved"]
    assert "flags" not in harness.ledger.rows["c"]


def test_the_next_case_is_begun_without_it_and_in_a_worker_that_it_has_not_used() -> None:
    harness = Harness({"a": ["ok"], "bad": ["spoils", "ok"]})

    harness.run(*(planned(name, N) for N in (64, 128) for name in ("a", "bad")))

    assert harness.ledger.statuses == {"a": "ok", "bad": "ok"}
    assert len(harness.ledger.order) == 4
    assert len(harness.workers) == 4  # one until it is found out, its own, then one each


def test_a_backend_that_is_alone_keeps_the_worker_that_it_has_spoilt() -> None:
    harness = Harness({"bad": ["spoils", "ok"]})

    harness.run(planned("bad", 64), planned("bad", 128))

    assert harness.ledger.statuses == {"bad": "ok"}
    assert len(harness.workers) == 1


def test_a_lowered_hard_limit_is_seen_once_and_a_raised_one_or_cores_never() -> None:
    before = hard_limits()

    assert not lowered(before, before)
    assert lowered({1: resource.RLIM_INFINITY}, {1: 5})
    assert lowered({1: 6}, {1: 5})
    assert not lowered({1: 5}, {1: resource.RLIM_INFINITY})
    assert resource.RLIMIT_CORE not in before


def test_the_soft_limit_is_put_back_as_far_as_the_hard_one_allows() -> None:
    """In a process of its own, for nobody but root may raise a hard limit again."""
    code = """
import resource
from fabench.settings import Settings
kept, before = Settings(), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 100))
kept.restore()
now = resource.getrlimit(resource.RLIMIT_NOFILE)
print(now in (before, (100, 100)), kept.lost() == (now != before), kept.lost())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True True False\n"


def test_settings_of_a_process_that_nobody_changed_are_not_lost() -> None:
    kept = Settings()
    kept.restore()

    assert not kept.lost()


def test_a_limit_that_a_file_lowers_when_it_is_loaded_is_no_rows_doing(tmp_path: Path) -> None:
    """Every worker loads it: the first row of each would be blamed."""
    (tmp_path / "capped.py").write_text(
        CAPPED.replace("def capped", f"{SETS}\n\ndef capped").replace(f"    {SETS}\n", "")
    )
    (tmp_path / "one.yaml").write_text(SUITE)
    out = tmp_path / "out.jsonl"

    done = run(tmp_path, "--backend-file", f"{tmp_path / 'capped.py'}:capped", "--in-process", "--out", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row.backend, "not_interleaved" in row.flags) for row in read(out).rows} == {
        ("naive", False), ("capped", False),
    }  # fmt: skip


@pytest.mark.slow
def test_a_backend_that_needs_what_another_has_given_away_has_it(tmp_path: Path) -> None:
    """`opens` needs 300 files at once, `capped` leaves its process 128 at most."""
    (tmp_path / "capped.py").write_text(CAPPED)
    (tmp_path / "opens.py").write_text(OPENS)
    (tmp_path / "one.yaml").write_text(SUITE)
    out = tmp_path / "out.jsonl"
    files = [word for name in ("capped", "opens") for word in ("--backend-file", f"{tmp_path / name}.py:{name}")]

    done = run(tmp_path, *files, "--out", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    rows = read(out).rows
    assert {(row.backend, row.status) for row in rows} == {(name, "ok") for name in ("naive", "capped", "opens")}
    apart = {row.backend for row in rows if "not_interleaved" in row.flags}
    assert apart <= {"capped"}


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")
