"""How long `fabench diff` takes, and how much memory: `python tests/diff_speed.py 1000 10000 100000`.

For each number of rows it writes two files of 10 rounds with 60 samples a row into a temporary folder (4 GB for 100,000
rows), compares them in a process of its own, and prints its CPU time and peak memory, and those of the process that
reads the second file.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

import resultfiles as rf

ROUNDS, SAMPLES = 10, 60
TIMED = """
import atexit, json, re, resource, sys

def usage():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    spent = [[u.ru_utime + u.ru_stime, u.ru_maxrss / 1024] for u in map(resource.getrusage, kinds)]
    # Linux hands ru_maxrss on to what a process starts: a big caller would be counted as ours.
    spent[0][1] = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    print(json.dumps(spent))

if __name__ == "__main__":
    atexit.register(usage)
    from fabench.cli import main
    main(["diff", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Spent:
    """Of one comparison."""

    wall_s: float
    cpu_s: tuple[float, float]
    """Of the command, and of its reader of the second file."""
    peak_mb: tuple[float, float]
    last_line: str


def write_file(path: Path, rows: int, seed: int) -> None:
    """A file of that many rows x 10 rounds, written line by line."""
    rng, levels = random.Random(seed), random.Random(0)
    made = [json.loads(line_of(rf.row(rf.case(128 + n), telemetry={"sm_clock_mhz_mean": 1980.0}))) for n in range(rows)]
    times = [levels.uniform(1e5, 1e7) for _ in range(rows)]
    with open(path, "w") as stream:
        head = rf.header(planned_rows=rows * ROUNDS, rounds=ROUNDS)
        stream.writelines(f"{line_of(record)}\n" for record in (head, rf.env(), rf.canary()))
        for number in range(ROUNDS):
            for row, level in zip(made, times, strict=True):
                median = level * math.exp(rng.gauss(0, 0.004))
                samples = [round(median * (1 + rng.gauss(0, 0.005)), 1) for _ in range(SAMPLES)]
                row |= {"round": number, "quantiles": rf.quantiles(median), "samples_ns": samples, "n": SAMPLES}
                stream.write(json.dumps(row) + "\n")
        count = rows * ROUNDS
        stream.write(
            line_of(rf.Footer(rows_written=count, status_counts={"ok": count}, complete=True, ended="x")) + "\n"
        )


def line_of(record: rf.Record) -> str:
    return record.model_dump_json(by_alias=True, exclude_none=True)


def compare(folder: Path, rows: int) -> Spent:
    """Write two files, compare them, delete them."""
    files = [folder / f"{name}.jsonl" for name in ("old", "new")]
    for seed, path in enumerate(files):
        write_file(path, rows, seed)
    script = folder / "timed.py"
    script.write_text(TIMED)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, script, *files],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wall = time.monotonic() - begin
    *_, verdict, usage = done.stdout.splitlines()
    (own_s, own_mb), (child_s, child_mb) = json.loads(usage)
    for path in files:
        path.unlink()
    return Spent(wall, (own_s, child_s), (own_mb, child_mb), verdict)


def main() -> None:
    lines = []
    for rows in map(int, sys.argv[1:] or ["1000", "10000"]):
        with tempfile.TemporaryDirectory() as folder:
            spent = compare(Path(folder), rows)
        lines.append(
            (f"{rows:,}", *(f"{s:.1f}" for s in spent.cpu_s), f"{spent.wall_s:.1f}", f"{sum(spent.peak_mb):.0f}")
        )
    heads = ("rows x 10 rounds", "CPU s", "and of its reader, CPU s", "wall s", "peak MB, both")
    print(tabulate(lines, heads, "github", disable_numparse=True))


if __name__ == "__main__":
    main()
