"""Shows on a GPU that the measuring rules hold; writes one JSON file and prints a short table.

Run as `python tests/gpu/measure_proof.py results/nvidia-h200/measure_proof.json`. It repeats the same rows in one
process and in fresh ones, with continuous timing beside them; shows the spin's effect, agreement with torch.profiler
and triton.testing.do_bench, memory when N doubles, and the shortest idle time that keeps repeats alike. It takes about
four minutes; a part that would start after --deadline is left out, and the file says so. docs/measurement.md takes its
figures from the file (tests/gpu/proof_figures.py).
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import proof_parts
import torch
from proof_bench import AA, Proof

from fabench import environment
from fabench.measure.rules import VERSION

PARTS: dict[str, Callable[[Proof], Any]] = {
    "canary": proof_parts.part_canary,
    "gate": proof_parts.part_gate,
    "aa": proof_parts.part_aa,
    "agreement": proof_parts.part_agreement,
    "memory": proof_parts.part_memory,
    "hot": proof_parts.part_hot,
    "sustained": proof_parts.part_sustained,
    "idle": proof_parts.part_idle,
    "spin": proof_parts.part_spin,  # last: a backend in it may tune itself for long
}
ORDER = ("canary", "gate", "aa", "rounds", *[name for name in PARTS if name not in ("canary", "gate", "aa")])


def one_round(dry: bool) -> None:
    """What a fresh process does once it is told to: measure the rows of the repeats, print their medians."""
    if not sys.stdin.readline():
        return
    proof = Proof(dry)
    rows = proof.rows(AA[2:6])
    before = {row.name: proof.clock_after(row) for row in rows}
    found = proof.measured(rows)
    after = {row.name: proof.clock_after(row) for row in rows}
    print(json.dumps({n: {"ns": median(out.samples_ns), "MHz": [before[n], after[n]]} for n, out in found.items()}))


def start_rounds(dry: bool) -> list[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--round", *(["--dry"] if dry else [])]
    return [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2 if dry else proof_parts.ROUNDS)
    ]


def table_of(results: dict[str, Any]) -> str:
    """The few lines worth reading on a terminal."""
    lines = [f"{results['device']} torch {results['torch']} ({results['wall_s']:.0f} s)"]
    rounds = {entry["row"]: entry["cv"] for entry in (results.get("rounds") or {}).get("rows", [])}
    for entry in (results.get("aa") or {}).get("rows", []):
        across = rounds.get(entry["row"])
        lines.append(
            f"{entry['row']:46} {entry['burst_ns'][0] / 1e6:8.4f} ms  cv burst {entry['burst_cv']:.3%}  "
            f"rounds {'-' if across is None else format(across, '.3%')}  continuous {entry['continuous_cv']:.3%}  "
            f"{entry['flags']}"
        )
    for entry in results.get("agreement") or []:
        if "profiler_ratio" in entry:
            lines.append(
                f"{entry['row']:46} / profiler {entry['profiler_ratio']:.4f}  / do_bench {entry['do_bench_ratio']:.4f}"
            )
    for entry in results.get("spin") or []:
        shown = {k: entry.get(f"{k}_tflops") for k in ("without", "with", "last", "graph")}
        lines.append(
            f"{entry['row']:46} TFLOP/s "
            + " ".join(f"{k} {'-' if v is None else format(v, '.0f')}" for k, v in shown.items())
            + f"  t_host {entry['t_host_ns']} ns {entry['flags']}"
        )
    for entry in results.get("idle") or []:
        lines.append(
            f"duty {entry['duty']:.0%} gated {entry['gated']} retry {entry['retry_s']} s: {entry['row_s']:.2f} s, "
            "cv "
            + " ".join(f"{value:.3%}" for value in entry["cv"].values())
            + " medians "
            + " ".join(
                f"{median(found) / median(results['idle'][0]['ns'][name]):.4f}" for name, found in entry["ns"].items()
            )
        )
    for name in ("hot", "gate", "sustained", "canary"):
        lines.append(f"{name}: {json.dumps(results.get(name))[:600]}")
    lines.append(
        f"overhead {(results.get('aa') or {}).get('overhead_ms_per_row')} ms a row; errors {results['errors']}"
    )
    return "\n".join(lines)


def about(proof: Proof, out: Path, *, fresh: bool) -> dict[str, Any]:
    """What the file says of where it was measured, and the parts it has, if they were measured alike."""
    facts: dict[str, Any] = {
        "rules": VERSION,
        "device": proof.device.name,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if not proof.dry:
        facts["driver"] = environment.software(proof.device, {}).driver
        facts["power_limit_w"] = environment.identity(proof.device).power_limit_w
    before = json.loads(out.read_text()) if out.exists() and not fresh else {}
    if any(before.get(name) != value for name, value in facts.items()):
        before = {}
    return {"seconds": {}, **before, **facts, "skipped": [], "errors": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="measure_proof.json")
    parser.add_argument("--parts", default=",".join(ORDER))
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds after which no part starts")
    parser.add_argument("--dry", action="store_true", help="try the script on a CPU")
    parser.add_argument("--fresh", action="store_true", help="do not keep the parts of OUT that are not measured now")
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.round:
        one_round(arguments.dry)
        return
    began, wanted = time.perf_counter(), arguments.parts.split(",")
    waiting = start_rounds(arguments.dry) if "rounds" in wanted else []
    proof = Proof(arguments.dry)
    results = about(proof, Path(arguments.out), fresh=arguments.fresh)
    parts: dict[str, Callable[[], Any]] = {name: (lambda part=part: part(proof)) for name, part in PARTS.items()}  # type: ignore[misc]
    parts["rounds"] = lambda: proof_parts.part_rounds(waiting)
    try:
        for name in [name for name in ORDER if name in wanted]:
            if time.perf_counter() - began > arguments.deadline:
                results["skipped"].append(name)
                continue
            started = time.perf_counter()
            try:
                results[name] = parts[name]()
            except Exception as error:  # one broken part must not cost the others
                results["errors"][name] = f"{type(error).__name__}: {error}"
            results["seconds"][name] = time.perf_counter() - started
            results["wall_s"] = sum(results["seconds"].values())
            Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
            Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    finally:
        for process in waiting:
            process.kill()
    print(table_of(results))
    print({name: round(seconds, 1) for name, seconds in results["seconds"].items()}, "skipped", results["skipped"])


if __name__ == "__main__":
    main()
