"""Measure the shipped suites on this GPU: `python tests/gpu/publish.py results/nvidia-h200 --seconds 540`.

One file a suite. A file that is there and unfinished is continued, so that several short stretches on one kind of
machine make a whole. Each compiles first what FlexAttention, flash-attn-4 and `triton` need (--compile-ahead), so that
their `compile_s` is short.
At the deadline the run gets a Ctrl-C, which leaves a valid file. The last lines say what is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends")]

from fabench.resultfile import read  # noqa: E402
from fabench.suite import shipped  # noqa: E402
from fabench_backends.flash_attn4 import KEEPS  # noqa: E402

GRACE_S = 15.0
"""Time for a run to end after its Ctrl-C."""


def command(source: str, out: Path, device: str, jobs: int) -> list[str]:
    """What measures the suite into `out`, or goes on with it."""
    target = ["--resume", str(out)] if out.exists() else ["--out", str(out)]
    ahead = ["--compile-ahead", str(jobs)]
    return [sys.executable, "-m", "fabench", "run", source, *target, "--device", device, *ahead]


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
    os.environ[KEEPS] = "1"  # flash-attn-4 then keeps what it has compiled
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
                began = time.monotonic()
                code = run(command(name, out, arguments.device, arguments.jobs), left, arguments.log)
                said = f"exit code {code} after {time.monotonic() - began:.0f} s"
        there, planned, statuses = progress(out)
        unfinished += not planned or there < planned
        print(f"{name}: {there} of {planned or '?'} rows, {json.dumps(statuses)}; {said}", flush=True)
    return 1 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
