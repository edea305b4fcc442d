"""Measure the shipped suites on this GPU: `python tests/gpu/publish.py results/nvidia-h200 --seconds 540`.

One file a suite. A file that is there and unfinished is continued, so that several short stretches on one kind of
machine make a whole. First the kernels of FlexAttention, flash-attn-4 and `triton`, which take seconds a shape to
compile, are compiled by many processes at once; the run then finds them in the compilers' caches on disk, and its
`compile_s` says so by being short.
At the deadline the run gets a Ctrl-C, which leaves a valid file. The last lines say what is complete.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends")]

from fabench.case import Case  # noqa: E402
from fabench.resultfile import read  # noqa: E402
from fabench.suite import load, shipped  # noqa: E402

COMPILED = ("flex", "triton", "flash-attn-4")
"""Backends whose compilers keep what they compiled on disk."""
KEEPS = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
"""What asks one of them to."""
GRACE_S = 15.0
"""Time for a run to end after its Ctrl-C."""


def compile_one(job: tuple[str, Case, str]) -> str | None:
    """Compile one case as the check before a measurement does; the error in words, if it fails."""
    from fabench import environment, registry
    from fabench.settings import multiply_exactly

    multiply_exactly()
    name, case, device_name = job
    backend, device = registry.shipped()[name], environment.resolve(device_name)
    if backend.unavailable(device) or backend.reasons(case, device):
        return None
    try:
        backend.prepare(case, device)
        if backend.facts_on(device).returns_lse:
            backend.prepare(case, device, lse=True)
    except Exception as error:  # the run will meet it again and record it
        return f"{name} {case.label()}: {type(error).__name__}: {error}"[:200]
    return None


def warm(suite_file: str, device: str, jobs: int, deadline: float) -> str:
    """Compile a suite's slow backends in parallel, until they are done or there is no time left; a line about it."""
    suite, began = load(suite_file), time.monotonic()
    excluded = suite.exclude
    work = [
        (name, case, device)
        for name in COMPILED
        for case in suite.cases
        if (name in suite.backends or "all" in suite.backends or "*" in suite.backends)
        and not any(condition.matches(case, name) for condition in excluded)
    ]
    if not work:
        return "nothing to compile ahead"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # these processes are the threads
    failed, done = list[str](), 0
    pool = multiprocessing.get_context("spawn").Pool(min(jobs, len(work)))
    try:
        results = pool.imap_unordered(compile_one, work)
        while done < len(work) and (left := deadline - time.monotonic()) > 0:
            try:
                error = results.next(timeout=left)
            except multiprocessing.TimeoutError:
                break
            done += 1
            failed += [error] if error else []
    finally:
        pool.terminate()
        del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    said = f"compiled {done} of {len(work)} cases ahead in {time.monotonic() - began:.0f} s"
    return "; ".join([said, *failed[:2]])


def command(source: str, out: Path, device: str) -> list[str]:
    """What measures the suite into `out`, or goes on with it."""
    target = ["--resume", str(out)] if out.exists() else ["--out", str(out)]
    return [sys.executable, "-m", "fabench", "run", source, *target, "--device", device]


def run(words: Sequence[str], seconds: float, log: Path) -> int:
    """Run a command for at most `seconds`, then interrupt it; its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])}
    with log.open("a") as sink:
        process = subprocess.Popen(words, stdout=sink, stderr=sink, cwd=ROOT, env=environment, start_new_session=True)
        try:
            return process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            return process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def progress(out: Path) -> tuple[int, int, dict[str, int]]:
    """Rows that are there, rows that were planned, and how many ended how."""
    if not out.exists():
        return 0, 0, {}
    file, statuses = read(out, allow_partial=True), dict[str, int]()  # a run whose machine went away has no footer
    for row in file.rows:
        statuses[row.status] = statuses.get(row.status, 0) + 1
    return len({row.row_id for row in file.rows}), file.header.planned_rows, statuses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("suites", nargs="*", help="names of shipped suites, in this order [default: all]")
    parser.add_argument("--seconds", type=float, default=540.0, help="nothing runs longer than this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that compile")
    parser.add_argument("--log", type=Path, default=Path("publish.log"), help="what the runs print")
    arguments = parser.parse_args()
    os.environ.update(KEEPS)
    deadline = time.monotonic() + arguments.seconds
    arguments.folder.mkdir(parents=True, exist_ok=True)
    unfinished = 0
    for name in arguments.suites or sorted(shipped()):
        out = arguments.folder / f"{name}.jsonl"
        there, planned, _ = progress(out)
        said = "complete"
        if not planned or there < planned:
            left = deadline - time.monotonic() - GRACE_S
            if left <= 0:
                said = "no time"
            else:
                ahead = warm(name, arguments.device, arguments.jobs, deadline - GRACE_S)
                began = time.monotonic()
                code = run(command(name, out, arguments.device), deadline - began - GRACE_S, arguments.log)
                said = f"exit code {code} after {time.monotonic() - began:.0f} s ({ahead})"
        there, planned, statuses = progress(out)
        unfinished += not planned or there < planned
        print(f"{name}: {there} of {planned or '?'} rows, {json.dumps(statuses)}; {said}", flush=True)
    return 1 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
