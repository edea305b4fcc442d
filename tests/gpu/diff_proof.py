"""Shows on a GPU that `fabench diff` finds what is there and nothing else: acceptance tests T3 and T4.

`python tests/gpu/diff_proof.py [RESULTS] --seconds 300` makes one A/B run of rows whose true differences are known
(tests/planted/slowed.py), interleaved, ten rounds a side, each in a fresh worker. Rows of one length have one truth and
are compared by themselves, so that one run holds several diffs: A/A, +2, +3, +5 and -5 %. Each is added to
RESULTS/<gpu>/diff-proof.json; the file's session is added to calibration-noise.json beside it. As many diffs are run
as --seconds has room for, by what the runs before have taken; of the kinds, those that are furthest behind. `--report`
prints what all so far show; docs/diff.md takes it from there (tests/gpu/diff_seen.py). `--device cpu` tries the
script without a GPU, on differences that a CPU can show.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "planted"), str(ROOT / "tests" / "gpu"), str(ROOT / "harness")]

from diff_seen import diffs, pairs_table  # noqa: E402
from slowed import PLANTED  # noqa: E402

KERNELS = ROOT / "tests" / "planted" / "slowed.py"
SUITE = """name: diff_proof
description: rows whose true differences are known
axes: {{dtype: {dtype}, d: {d}, batch: {batch}, heads: {heads}, causal: [false, true], N: [{lengths}]}}
exclude: "d=64,causal=true"
backends: [candidate]
measure: {{seconds: {seconds}}}
"""
GPU = {"dtype": "bf16", "d": "[64, 128]", "batch": 2, "heads": 16, "seconds": 0.05}
CPU = {"dtype": "fp32", "d": "[32, 64]", "batch": 1, "heads": 4, "seconds": 0.02}
WEIGHT = {"A/A": 3}
"""How many diffs of a kind there should be for each of another kind's."""
ROWS = 3
"""Of one length on a GPU."""
START_S, ROW_S = 9.0, 1.5
"""Taken for the start of a worker and for a row of a round, until a run has shown better."""


@dataclass(frozen=True)
class Length:
    """One N and what is true of it."""

    N: int
    a: float
    b: float

    @property
    def truth(self) -> float:
        """new / old - 1 of time."""
        return (1.0 + self.b) / (1.0 + self.a) - 1.0

    @property
    def kind(self) -> str:
        """A/A, or what was added, and to which side: +2 % to the new one, -5 % to the old."""
        return "A/A" if self.a == self.b else f"+{self.b:.0%}" if self.b else f"-{self.a:.0%}"


def lengths(*, cpu: bool) -> list[Length]:
    """The planted lengths of a device."""
    return [Length(N, a, b) for N, (a, b) in PLANTED.items() if (N < 1000) == cpu]


def chosen(known: Sequence[dict[str, Any]], count: int, *, cpu: bool) -> list[Length]:
    """The `count` lengths of which there are fewest diffs for what there should be, A/A first; no length twice."""
    done = Counter(line["kind"] for line in known)
    left, out = lengths(cpu=cpu), list[Length]()
    while left and len(out) < count:
        best = min(left, key=lambda length: (done[length.kind] / WEIGHT.get(length.kind, 1), length.kind != "A/A"))
        left.remove(best)
        out.append(best)
        done[best.kind] += 1
    return out


def room(known: Sequence[dict[str, Any]], seconds: float, rounds: int) -> int:
    """How many lengths a run of `seconds` has room for."""
    row_s = ROW_S
    if known:
        last = known[-1]
        row_s = max(0.1, (last["seconds"] / (2 * last["rounds"]) - START_S) / last["run_rows"])
    return int((seconds / (2 * rounds) - START_S) / (row_s * ROWS))


def run(todo: Sequence[Length], folder: Path, rounds: int, device: str) -> tuple[Path, Path, float]:
    """One A/B run of these lengths: both files, and the seconds it took. A row that failed is for `diff` to report."""
    suite, out = folder / "diff_proof.yaml", folder / "pair.jsonl"
    values = CPU if device == "cpu" else GPU
    suite.write_text(SUITE.format(**values, lengths=", ".join(str(length.N) for length in todo)))
    begin = time.monotonic()
    fabench(
        (0, 1), "run", suite, "--ab", f"{KERNELS}:a", f"{KERNELS}:b", "--rounds", rounds, "--device", device,
        "--no-check", "--out", out,
    )  # fmt: skip
    return folder / "pair.a.jsonl", folder / "pair.b.jsonl", time.monotonic() - begin


def compare(length: Length, files: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    """The diff of one length's rows."""
    report = folder / f"{length.N}.json"
    code = fabench((0, 1, 3), "diff", *files, "--where", f"N={length.N}", "--json", report)
    data = json.loads(report.read_text())
    rows = [
        {"verdict": row["verdict"], "case": row["case"], "d": math.log(row["ratio"]) if row["ratio"] else None}
        for row in data["rows"]
    ]
    return {
        "kind": length.kind,
        "truth": length.truth,
        "device": data["old"]["envs"][0]["identity"]["model"],
        "driver": data["old"]["envs"][0]["software"].get("driver"),
        "torch": data["old"]["envs"][0]["software"]["torch"],
        "started": data["old"]["started"],
        "session": data["old"]["session_id"],
        "rounds": data["old"]["rounds"],
        "exit": code,
        "rows": rows,
    }


def fabench(allowed: Sequence[int], *words: object) -> int:
    """Run a command; its exit code. Ends this script, with what was said, if it is none of `allowed`."""
    done = subprocess.run(
        [sys.executable, "-m", "fabench", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode not in allowed:
        said = f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        raise SystemExit(f"`fabench {' '.join(map(str, words))}` ended with {done.returncode}:\n{said}")
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "results")
    parser.add_argument("--seconds", type=float, default=300.0, help="the most that the run should take")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, help="a folder for the two result files")
    parser.add_argument("--report", action="store_true", help="print what there is and measure nothing")
    arguments = parser.parse_args()
    if arguments.report:
        for log in sorted(arguments.results.glob("*/diff-proof.json")):
            print(f"{log}\n\n{pairs_table(diffs(log))}\n")
        return
    slug, cpu = slug_of(arguments.device)
    log = arguments.results / slug / "diff-proof.json"
    known = diffs(log)
    if (count := room(known, arguments.seconds, arguments.rounds)) < 1:
        raise SystemExit(f"'--seconds' must leave room for one diff of {ROWS} rows, got {arguments.seconds:g}")
    todo = chosen(known, count, cpu=cpu)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        *files, seconds = run(todo, folder, arguments.rounds, arguments.device)
        lines = [compare(length, (files[0], files[1]), folder) for length in todo]
        for line in lines:
            line |= {"seconds": round(seconds, 1), "run_rows": sum(len(other["rows"]) for other in lines)}
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(json.dumps({"diffs": [*known, *lines]}, indent=1) + "\n")
        fabench((0,), "calibrate", "--noise", files[0], "--out", log.parent / "calibration-noise.json")
    print(pairs_table(diffs(log)))


def slug_of(device: str) -> tuple[str, bool]:
    """The device's folder under results, and whether it is a CPU. Asked in another process: none may hold the GPU."""
    code = "import sys; from fabench import environment as e; d = e.resolve(sys.argv[1]); print(d.slug, d.type)"
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    slug, kind = done.stdout.split()
    return slug, kind == "cpu"


if __name__ == "__main__":
    main()
