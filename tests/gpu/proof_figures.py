"""Puts the figures of a proof into the guide.

Run as `python tests/gpu/proof_figures.py results/nvidia-h200/measure_proof.json docs/measurement.md`. The figures stand
between `<!-- figures: NAME -->` and `<!-- end -->`; what stands there is replaced by what the file of
tests/gpu/measure_proof.py says, so that no figure in the guide is typed by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = "Not measured in this file.\n"

Proof = dict[str, Any]


def fill(guide: str, proof: Proof) -> str:
    """The guide with every block of figures made anew. Raises KeyError on a block of an unknown name."""
    return BLOCK.sub(lambda match: match[1] + FIGURES[match[2]](proof) + match[3], guide)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column left, the others right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def percent(share: float, digits: int = 2) -> str:
    return f"{share * 100:.{digits}f} %"


def ms(ns: float) -> str:
    return f"{ns / 1e6:.4g}"


def middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def where(proof: Proof) -> str:
    limit = proof.get("power_limit_w")
    power = "" if limit is None else f", {limit:.0f} W"
    skipped = [name for name in proof["skipped"] if name not in proof]
    parts = [*skipped, *(f"{name} ({error})" for name, error in proof["errors"].items())]
    left_out = f" Left out: {'; '.join(parts)}." if parts else ""
    return (
        f"{proof['device']}{power}, driver {proof.get('driver')}, torch {proof['torch']}, "
        f"in {proof['wall_s']:.0f} s of device time, by version {proof.get('rules', '1')} of the rules.{left_out}\n"
    )


def repeats(proof: Proof) -> str:
    if not proof.get("aa"):
        return MISSING
    rounds = {entry["row"]: entry for entry in (proof.get("rounds") or {}).get("rows", [])}
    rows = []
    for entry in proof["aa"]["rows"]:
        across = rounds.get(entry["row"])
        clocks = [clock for clock in entry["continuous_sm_mhz"] if clock is not None]
        rows.append(
            [
                entry["row"],
                ms(middle(entry["burst_ns"])),
                percent(entry["burst_cv"]),
                "-" if across is None else percent(across["cv"]),
                "-".join(dict.fromkeys(ms(bound(entry["continuous_ns"])) for bound in (min, max))),
                percent(entry["continuous_cv"]),
                f"{min(clocks):.0f}-{max(clocks):.0f}" if clocks else "-",
            ]
        )
    header = ["row", "burst ms", "cv", "cv of rounds", "continuous ms", "cv", "continuous SM MHz"]
    count = len(next(iter(rounds.values()))["ns"]) if rounds else 0
    fresh = f" and {count} fresh processes" if count else ""
    note = (
        f"\nMedians of {proof['aa']['n']} samples, {proof['aa']['repeats']} repeats in one process{fresh}; cv is their "
        f"standard deviation over their mean. Beyond device and idle time, measuring took "
        f"{proof['aa']['overhead_ms_per_row']:.0f} ms a row.\n"
    )
    return table(header, rows) + note


def rounds(proof: Proof) -> str:
    """What each fresh process measured, from the fastest to the slowest, on a quiet machine and beside other work."""
    rows = [
        [entry["row"], where, ", ".join(map(ms, sorted(entry["ns"]))), percent(entry["cv"])]
        for part, where in {"rounds": "a quiet machine", "rounds_beside": "another, its second GPU at work"}.items()
        for entry in (proof.get(part) or {}).get("rows", [])
    ]
    return table(["row", "on", "medians of fresh processes, ms", "cv"], rows) if rows else MISSING


def wake(proof: Proof) -> str:
    """Of each way to hold the device before a call: the medians of the processes, and how samples spread in them."""
    if not proof.get("wake"):
        return MISSING
    processes, rows = proof["wake"]["processes"], []
    for name in dict.fromkeys(sample[0] for sample in processes[0]):
        times = [sorted(us for way, _, us, _ in samples if way == name) for samples in processes]
        spread = middle([(t[len(t) * 9 // 10] - t[len(t) // 10]) / middle(t) for t in times])
        rows.append([name, ", ".join(f"{middle(t) / 1e3:.4g}" for t in times), percent(spread, 1)])
    return table(["before the call", "medians of fresh processes, ms", "p10 to p90"], rows)


def agreement(proof: Proof) -> str:
    entries = [entry for entry in proof.get("agreement") or [] if "profiler_ns" in entry]
    if not entries:
        return MISSING
    rows = [
        [
            entry["row"],
            ms(entry["burst_ns"]),
            ms(entry["profiler_ns"]),
            percent(entry["profiler_ratio"] - 1),
            ms(entry["do_bench_ns"]),
            percent(entry["do_bench_ratio"] - 1),
        ]
        for entry in entries
    ]
    return table(["row", "burst ms", "profiler ms", "off by", "do_bench ms", "off by"], rows)


def spin(proof: Proof) -> str:
    if not proof.get("spin"):
        return MISSING
    # In version 1 of the rules the spin followed the flush.
    kinds = ("without", "with", "none", "graph") if "rules" not in proof else ("without", "last", "with", "graph")
    rows = []
    for entry in proof["spin"]:
        rates = [entry.get(f"{kind}_tflops") for kind in kinds]
        host = entry["t_host_ns"]
        rows.append(
            [
                entry["row"],
                "-" if host is None else f"{host / 1e3:.0f}",
                *("-" if rate is None else f"{rate:.0f}" for rate in rates),
            ]
        )
    return table(["row", "host us", "no spin", "flush, spin", "spin, flush", "graph"], rows)


def idle(proof: Proof) -> str:
    if not proof.get("idle"):
        return MISSING
    names = list(proof["idle"][0]["cv"])
    rows = []
    for e in proof["idle"]:
        calls = sum(len(found) for found in e["ns"].values())
        rows.append(
            [
                percent(e["duty"], 0),
                f"asked again after {e['retry_s'] * 1e3:.0f} ms" if e["gated"] else "no",
                f"{(e['device_s'] + e['idle_s']) / calls:.2f}",
                *(f"{ms(middle(e['ns'][name]))} ({percent(e['cv'][name])})" for name in names),
            ]
        )
    return table(["duty", "canary", "s a row", *(f"{name}, ms (cv)" for name in names)], rows)


def hot(proof: Proof) -> str:
    if not proof.get("hot"):
        return MISSING
    cold = {entry["row"]: middle(entry["burst_ns"]) for entry in (proof.get("aa") or {}).get("rows", [])}
    rows = []
    for gated, ungated in zip(proof["hot"]["gated"], proof["hot"]["ungated"], strict=True):
        at_rest = cold.get(gated["row"])
        rows.append(
            [
                gated["row"],
                "-" if at_rest is None else ms(at_rest),
                ", ".join(map(ms, ungated["ns"])),
                ", ".join(map(ms, gated["ns"])),
            ]
        )
    return table(["row", "at rest, ms", "after 1 s of GEMMs, no canary", "with the canary"], rows)


def gate(proof: Proof) -> str:
    if not proof.get("gate"):
        return MISSING
    found = proof["gate"]
    return (
        f"{len(found['ns'])} readings of the canary on a card at rest have a cv of {percent(found['cv'])}; "
        f"{found['above_tolerance']} of them are more than 0.5 % above their median.\n"
    )


def sustained(proof: Proof) -> str:
    if not proof.get("sustained"):
        return MISSING
    cold = {entry["row"]: middle(entry["burst_ns"]) for entry in (proof.get("aa") or {}).get("rows", [])}
    rows = []
    for entry in proof["sustained"]:
        at_rest, clock = cold.get(entry["row"]), entry["sm_mhz"]
        rows.append(
            [
                entry["row"],
                "-" if at_rest is None else ms(at_rest),
                ms(entry["ns"]),
                "-" if at_rest is None else percent(entry["ns"] / at_rest - 1, 1),
                "-" if clock is None else f"{clock:.0f}",
            ]
        )
    return table(["row", "burst ms", "sustained ms", "slower by", "SM MHz"], rows)


def canary(proof: Proof) -> str:
    if not proof.get("canary"):
        return MISSING
    rows = [
        [
            reading["regime"],
            ", ".join(f"{dtype} {flops / 1e12:.0f}" for dtype, flops in reading["gemm_flops"].items()),
            f"{reading['copy_bandwidth'] / 1e12:.2f}",
            f"{reading['null_ns'] / 1e3:.2f}",
        ]
        for reading in proof["canary"]
    ]
    return table(["regime", "GEMM, TFLOP/s", "copy, TB/s", "empty kernel, us"], rows)


def memory(proof: Proof) -> str:
    if not proof.get("memory"):
        return MISSING
    rows, last = [], dict[tuple[str, str], float]()
    for entry in proof["memory"]:
        key, peak = (entry["backend"], entry["direction"]), entry["peak_bytes"]
        before = last.get(key)
        rows.append(
            [
                f"{entry['backend']} {entry['direction']} N={entry['N']}",
                f"{peak / 2**20:.1f}",
                "-" if before is None else f"{peak / before:.2f}x",
                f"{entry['predicted_bytes'] / 2**20:.1f}",
            ]
        )
        last[key] = peak
    return table(["row, batch·heads = 16, d = 64", "peak beyond inputs, MiB", "grew by", "predicted, MiB"], rows)


FIGURES: dict[str, Callable[[Proof], str]] = {
    f.__name__: f for f in (where, repeats, rounds, wake, agreement, spin, idle, hot, gate, sustained, canary, memory)
}
"""Block name -> its text."""


def main(argv: Sequence[str]) -> None:
    if len(argv) < 2:
        sys.exit("usage: python tests/gpu/proof_figures.py PROOF.json... docs/measurement.md")
    *proofs, guide = map(Path, argv)
    guide.write_text(fill(guide.read_text(), joined(proofs)))


def joined(proofs: Sequence[Path]) -> Proof:
    """The first proof, with those parts of the later ones that it lacks."""
    first, *later = (json.loads(path.read_text()) for path in proofs)
    for other in later:
        first = {**{name: part for name, part in other.items() if name in FIGURES}, **first}
    return first


if __name__ == "__main__":
    main(sys.argv[1:])
