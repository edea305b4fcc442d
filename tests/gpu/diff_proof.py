"""Shows on a GPU that `fabench diff` finds what is there and nothing else: acceptance tests T3 and T4.

`python tests/gpu/diff_proof.py OUT --seconds 500` runs A/A and A/B pairs interleaved, one after another until the time
is up, keeps every result file in OUT, and appends one line a pair to OUT/pairs.jsonl; `--report` prints what all lines
so far show, which is docs/diff.md's table. A pair that the time would cut short is not begun. `--device cpu` tries it
without a GPU, with a slowdown that a CPU can show.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta
from tabulate import tabulate

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "planted" / "slowed.py"
SUITE = """name: diff_proof
description: long enough that no launch matters, short enough for many rounds
axes: {cases}
backends: [candidate]
measure: {{seconds: {seconds}}}
"""
GPU_CASES = "{dtype: bf16, d: 128, batch: 4, heads: 16, causal: [false, true], N: [4096, 8192]}"
CPU_CASES = "{dtype: fp32, d: 64, batch: 1, heads: 8, causal: [false, true], N: 256}"


@dataclass(frozen=True)
class Kind:
    """One kind of pair: its two sides, and what diff should say."""

    name: str
    a: str
    b: str
    truth: float
    """new / old - 1."""


GPU_KINDS = (
    Kind("A/A", "plain", "plain", 0.0),
    Kind("+2 %", "plain", "slower2", 0.02),
    Kind("+3 %", "plain", "slower3", 0.03),
    Kind("+5 %", "plain", "slower5", 0.05),
    Kind("-5 %", "slower5", "plain", 1 / 1.05 - 1),
)
CPU_KINDS = (Kind("A/A", "plain", "plain", 0.0), Kind("+20 %", "plain", "slower20", 0.20))


def turns(kinds: tuple[Kind, ...], first: str | None) -> Iterator[Kind]:
    """Two A/A pairs for each other kind, over and over; `first` alone if it is named."""
    while True:
        for kind in kinds:
            if first in (None, kind.name):
                yield kind
                if kind.truth and first is None:
                    yield kinds[0]


def pair(kind: Kind, number: int, folder: Path, suite: Path, rounds: int, device: str) -> dict[str, object]:
    """Run one pair and compare it."""
    out = folder / f"pair{number}.jsonl"
    sides = [f"{KERNELS}:{name}" for name in (kind.a, kind.b)]
    fabench = [sys.executable, "-m", "fabench"]
    begin = time.monotonic()
    ran = subprocess.run(
        [*fabench, "run", suite, "--ab", *sides, "--rounds", str(rounds), "--device", device, "--out", out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode not in (0, 1):
        raise SystemExit(f"the pair could not be run, exit code {ran.returncode}:\n{ran.stderr[-2000:]}")
    files = [out.with_suffix(f".{side}.jsonl") for side in "ab"]
    report = folder / f"pair{number}.json"
    done = subprocess.run(
        [*fabench, "diff", *files, "--json", report], capture_output=True, text=True, check=False
    )  # fmt: skip
    data = json.loads(report.read_text())
    rows = [
        {"verdict": row["verdict"], "case": row["case"], "d": math.log(row["ratio"]) if row["ratio"] else None}
        for row in data["rows"]
    ]
    return {
        "kind": kind.name,
        "truth": kind.truth,
        "rounds": rounds,
        "seconds": round(time.monotonic() - begin, 1),
        "exit": done.returncode,
        "session": data["old"]["session_id"],
        "rows": rows,
    }


def report(lines: list[dict]) -> str:
    """By kind: pairs, verdicts, error of the shift, and the bound on diffs with a false verdict that A/A reached."""
    table = []
    for name in dict.fromkeys(line["kind"] for line in lines):
        mine = [line for line in lines if line["kind"] == name]
        rows = [row for line in mine for row in line["rows"]]
        counts = {
            verdict: sum(row["verdict"] == verdict for row in rows) for verdict in sorted({r["verdict"] for r in rows})
        }
        errors = [row["d"] - math.log1p(line["truth"]) for line in mine for row in line["rows"] if row["d"] is not None]
        any_wrong = sum(any(r["verdict"] in ("REGRESSED", "IMPROVED") for r in line["rows"]) for line in mine)
        bound = beta.ppf(0.95, any_wrong + 1, len(mine) - any_wrong) if any_wrong < len(mine) else 1.0
        table.append(
            (
                name,
                len(mine),
                ", ".join(f"{count} {verdict}" for verdict, count in counts.items()),
                f"{max(map(abs, errors)):.2%}",
                f"{any_wrong} (at most {bound:.0%})" if name == "A/A" else "",
                " ".join(sorted({str(line["exit"]) for line in mine})),
            )
        )
    heads = ("pair", "diffs", "rows", "largest error of d", "diffs with a false verdict", "exit codes")
    return tabulate(table, heads, "github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", help="one kind of pair, such as 'A/A'")
    parser.add_argument("--report", action="store_true", help="print what there is and measure nothing")
    arguments = parser.parse_args()
    folder, cpu = arguments.out, arguments.device == "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    log, deadline = folder / "pairs.jsonl", time.monotonic() + arguments.seconds
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if not arguments.report:
        suite = folder / "diff_proof.yaml"
        suite.write_text(SUITE.format(cases=CPU_CASES if cpu else GPU_CASES, seconds=0.05 if cpu else 0.1))
        longest = 0.0
        for kind in turns(CPU_KINDS if cpu else GPU_KINDS, arguments.only):
            if time.monotonic() + longest > deadline:
                break
            begin = time.monotonic()
            line = pair(kind, len(known), folder, suite, arguments.rounds, arguments.device)
            longest = max(longest, time.monotonic() - begin)
            known.append(line)
            with log.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
    print(report(known))


if __name__ == "__main__":
    main()
