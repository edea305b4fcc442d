"""Puts what was seen of `fabench diff` on a GPU into docs/diff.md.

Run as `python tests/gpu/diff_seen.py results/nvidia-h200 docs/diff.md`. The figures stand between
`<!-- figures: NAME -->` and `<!-- end -->`, and come from the files that tests/gpu/diff_proof.py and
tests/gpu/cross_check.py have written and `fabench calibrate --noise` has added to, so that none is typed by hand.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proof_figures import BLOCK, percent, table
from scipy.stats import beta

from fabench.text import counted

Lines = Sequence[dict[str, Any]]
NOTHING = "Nothing of this has been measured on a GPU yet.\n"


def fill(guide: str, folder: Path) -> str:
    """The guide with every block of figures made anew. Raises KeyError on a block of an unknown name."""
    return BLOCK.sub(lambda match: match[1] + FIGURES[match[2]](folder) + match[3], guide)


def pairs(folder: Path) -> str:
    """T3 and T4: diffs whose truth is known."""
    lines = diffs(folder / "diff-proof.json")
    if not lines:
        return NOTHING
    sessions = {line["session"] for line in lines}
    software = sorted({f"torch {line['torch']}, driver {line['driver']}" for line in lines})
    devices = " and ".join(sorted({line["device"] for line in lines}))
    where = f"{devices}, {counted(len(sessions), 'session')}, {'; '.join(software)}"
    return f"{where}:\n\n{pairs_table(lines)}\n"


def pairs_table(lines: Lines) -> str:
    """By kind: diffs, verdicts, error of the shift, exit codes, and the bound on diffs with a false verdict."""
    body = []
    for name in dict.fromkeys(line["kind"] for line in sorted(lines, key=lambda line: abs(line["truth"]))):
        mine = [line for line in lines if line["kind"] == name]
        rows = [row for line in mine for row in line["rows"]]
        counts = Counter(row["verdict"] for row in rows)
        wrong = sum(any(row["verdict"] in wrongs(line["truth"]) for row in line["rows"]) for line in mine)
        errors = [row["d"] - math.log1p(line["truth"]) for line in mine for row in line["rows"] if row["d"] is not None]
        body.append(
            (
                name,
                str(len(mine)),
                ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())),
                percent(sum(errors) / len(errors)) if errors else "-",
                percent(max(map(abs, errors))) if errors else "-",
                f"{wrong} (at most {upper_bound(wrong, len(mine)):.0%})",
                ", ".join(f"{code}: {n}" for code, n in sorted(Counter(line["exit"] for line in mine).items())),
            )
        )
    heads = ("truth", "diffs", "rows", "mean error of d", "largest", "diffs with a false verdict", "exit codes")
    return table(heads, body)


def wrongs(truth: float) -> tuple[str, ...]:
    """The verdicts that are false of rows of this truth; BROKEN always is: a row that failed shows nothing."""
    speed = ("REGRESSED", "IMPROVED") if truth == 0 else ("IMPROVED",) if truth > 0 else ("REGRESSED",)
    return ("BROKEN", *speed)


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided bound of a probability (Clopper & Pearson 1934)."""
    return 1.0 if events == trials else float(beta.ppf(confidence, events + 1, trials - events))


def sessions(folder: Path) -> str:
    """What sessions were seen to differ by: the noise file's own words."""
    path = folder / "calibration-noise.json"
    if not path.exists():
        return NOTHING
    from fabench.cli.calibrate_noise import describe
    from fabench.diff import Thresholds, noise

    limits = Thresholds()
    found = noise.load(path, limits.calibration_sessions, limits.calibration_cards)
    return f"```\n{describe(found).replace(str(path), path.name)}\n```\n"


def timers(folder: Path) -> str:
    """T7: burst medians against two other timers, the newest run of each version."""
    path = folder / "cross-check.json"
    if not path.exists():
        return NOTHING
    runs = json.loads(path.read_text())["runs"]
    last = runs[-1]
    body = [
        (
            row["row"],
            f"{row['burst_ns'] / 1e6:.4f}",
            *("-" if row[f"{timer}_ns"] is None else f"{row[f'{timer}_ns'] / 1e6:.4f}" for timer in TIMERS),
            *("-" if row[f"{timer}_ns"] is None else f"{row['burst_ns'] / row[f'{timer}_ns']:.4f}" for timer in TIMERS),
        )
        for row in last["rows"]
    ]
    worst = {timer: [worst_of(run, timer) for run in runs if worst_of(run, timer) is not None] for timer in TIMERS}
    seen = ", ".join(
        f"{TIMERS[timer]} {percent(max(found))} in {counted(len(found), 'run')}"
        for timer, found in worst.items()
        if found
    )
    versions = f"torch {last['torch']}" + (f", cuda-bench {last['cuda_bench']}" if last["cuda_bench"] else "")
    heads = ("row", "burst ms", *(f"{name} ms" for name in TIMERS.values()), *(f"burst / {n}" for n in TIMERS.values()))
    return f"{last['device']}, {versions}; largest difference of any row: {seen}.\n\n{table(heads, body)}"


TIMERS = {"profiler": "torch.profiler", "cuda_bench": "cuda-bench"}
"""The other timers: their name in the file, and in words."""


def worst_of(run: dict[str, Any], timer: str) -> float | None:
    """The largest relative difference of any row of a run, None where the timer did not run."""
    ratios = [row["burst_ns"] / row[f"{timer}_ns"] for row in run["rows"] if row[f"{timer}_ns"] is not None]
    return max((abs(ratio - 1.0) for ratio in ratios), default=None)


def diffs(path: Path) -> list[dict[str, Any]]:
    """The diffs of a file of tests/gpu/diff_proof.py; none if it is not there."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["diffs"] if path.exists() else []
    return found


FIGURES: dict[str, Callable[[Path], str]] = {"pairs": pairs, "sessions": sessions, "timers": timers}

if __name__ == "__main__":
    folder, guide = map(Path, sys.argv[1:3])
    guide.write_text(fill(guide.read_text(), folder))
