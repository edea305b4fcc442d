"""Puts the figures of tests/gpu/kernel_bars.py into the kernels' READMEs.

Run as `python tests/gpu/kernel_figures.py results/nvidia-h200/kernel_bars.json`. What stands between
`<!-- figures: NAME -->` and `<!-- end -->` is replaced by what the file says, and what the `profile.json` of `fabench
profile` beside it says, so that no figure there is typed by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proof_figures import BLOCK, MISSING, table

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "backends" / "fabench_backends" / name / "README.md" for name in ("cuda_flash", "triton_flash")]
RIVALS = ("sdpa-flash", "flash-attn", "flex", "sdpa-cudnn")

Results = dict[str, Any]
Place = tuple[int, bool, int]


def fill(text: str, results: Results) -> str:
    """The text with every block of figures made anew. Raises KeyError on a block of an unknown name."""
    return BLOCK.sub(lambda match: match[1] + FIGURES[match[2]](results) + match[3], text)


def where(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    left_out = f" Left out: {'; '.join(results['left_out'])}." if results["left_out"] else ""
    return (
        f"{results['device']}, torch {results['torch']}, {versions}; medians of {results['samples']} calls; "
        f"bf16 GEMM in the same run {results['gemm_tflops']:.0f} TFLOP/s.{left_out}\n"
    )


def speeds(results: Results, direction: str) -> dict[Place, dict[str, float]]:
    """(d, causal, N) -> backend -> TFLOP/s."""
    found: dict[Place, dict[str, float]] = {}
    for row in results["rows"]:
        if row["direction"] == direction and "ns" in row:
            found.setdefault((row["d"], row["causal"], row["N"]), {})[row["backend"]] = row["tflops"]
    return dict(sorted(found.items()))


def against(direction: str, ours: Sequence[str]) -> Callable[[Results], str]:
    """A table of TFLOP/s in one direction: ours, with the share of the measured GEMM, then the rivals."""

    def draw(results: Results) -> str:
        found = speeds(results, direction)
        rivals = [name for name in RIVALS if any(name in by_backend for by_backend in found.values())]
        if not found:
            return MISSING
        rows = []
        for (d, causal, N), by_backend in found.items():
            cells = [f"d = {d}, {'causal' if causal else 'full'}, N = {N // 1024}k"]
            for name in ours:
                speed = by_backend.get(name)
                share = "" if speed is None else f" ({speed / results['gemm_tflops']:.0%})"
                cells.append("-" if speed is None else f"{speed:.0f}{share}")
            rows.append([*cells, *("-" if name not in by_backend else f"{by_backend[name]:.0f}" for name in rivals)])
        return table([f"{direction}, TFLOP/s (of GEMM)", *ours, *rivals], rows)

    return draw


def bars(prefix: str) -> Callable[[Results], str]:
    """The bars whose names start so, met or not."""

    def draw(results: Results) -> str:
        rows = []
        for bar in results["bars"]:
            if bar["bar"].startswith(prefix) and bar["met"] is not None:
                wanted = [f"mean {bar['wanted']:.2f}"] if bar["wanted"] else []
                wanted += [f"least {bar['least_wanted']:.2f}"] if bar["least_wanted"] else []
                met = "yes" if bar["met"] else "no"
                rows.append([bar["bar"], f"{bar['geomean']:.3f}", f"{bar['least']:.3f}", ", ".join(wanted), met])
        return table(["bar", "geometric mean", "least", "wanted", "met"], rows) if rows else MISSING

    return draw


def v1(results: Results) -> str:
    """cuda-v1 over batch x heads, its prediction below 128, and v2 over it."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for row in results["v1"]:
        if "ns" in row:
            found.setdefault((row["N"], row["batch"] * row["heads"]), {})[row["backend"]] = row["tflops"]
    if not found:
        return MISSING
    rows = []
    for (N, heads), by_backend in sorted(found.items()):
        one, two, full = by_backend.get("cuda-v1"), by_backend.get("cuda-v2"), found.get((N, 128), {}).get("cuda-v1")
        prediction = f"{heads * full / 128:.0f}" if full and heads < 128 else "-"
        ratio = f"{two / one:.1f}x" if one and two else "-"
        rows.append([f"N = {N}, {heads} heads", *("-" if x is None else f"{x:.0f}" for x in (one,)), prediction,
                     "-" if two is None else f"{two:.0f}", ratio])  # fmt: skip
    return table(["d = 64, full", "cuda-v1", "predicted", "cuda-v2", "v2 / v1"], rows)


def memory(names: Sequence[str]) -> Callable[[Results], str]:
    """Workspaces beside LSE + accumulators."""

    def draw(results: Results) -> str:
        rows = [
            [f"{row['backend']} {row['direction']} N = {row['N']}", f"{row['workspace_bytes'] / 2**20:.2f}",
             f"{row['expected_bytes'] / 2**20:.2f}"]
            for row in results["memory"] if row["backend"] in names
        ]  # fmt: skip
        return (
            table(["d = 128, batch x heads = 64", "workspace, MiB", "LSE + accumulators, MiB"], rows)
            if rows
            else MISSING
        )

    return draw


def counters(names: Sequence[str]) -> Callable[[Results], str]:
    """What ncu counted of one forward of each: HBM bytes, how often K and V were read, and what the SMs did."""

    def draw(results: Results) -> str:
        profile = results.get("profile")
        if profile is None:
            return MISSING
        case = profile["case"]
        rows_bytes = 2 * case["batch"] * case["d"]
        Q, KV = case["heads"] * case["Nq"] * rows_bytes, 2 * case["kv_heads"] * case["Nk"] * rows_bytes
        rows = []
        for found in profile["profiles"]:
            if found["backend"] in names and found["tool"] == "ncu":
                (k,) = found["kernels"]
                read = k["dram_read_bytes"]
                times = "-" if found["backend"] == "cuda-v1" else f"{(read - Q) / KV:.1f}"  # v1 reads its sums too
                rows.append(
                    [found["backend"], f"{k['time_ns'] / 1e6:.2f}", f"{read / 1e9:.2f}",
                     f"{k['dram_written_bytes'] / 1e9:.3f}", times, f"{k['tensor']:.0%}",
                     f"{k['occupancy']:.0%}", f"{k['registers']}", f"{k['shared_bytes'] / 1024:.0f}"]
                )  # fmt: skip
        where = f"d = {case['d']}, N = {case['Nq']}, batch x heads = {case['batch'] * case['heads']}"
        header = [where, "ms", "HBM GB read", "written", "K, V read, times", "tensor pipe busy", "occupancy",
                  "registers", "shared, KiB"]  # fmt: skip
        return table(header, rows) if rows else MISSING

    return draw


CUDA = ("cuda-v2", "cuda-v1")
FIGURES: dict[str, Callable[[Results], str]] = {
    "where": where,
    "cuda_forward": against("forward", CUDA),
    "cuda_backward": against("backward", CUDA),
    "cuda_bars": bars("cuda-"),
    "cuda_v1": v1,
    "cuda_memory": memory(CUDA),
    "cuda_counters": counters((*CUDA, "flash-attn", "sdpa-cudnn")),
    "triton_forward": against("forward", ("triton",)),
    "triton_backward": against("backward", ("triton",)),
    "triton_bars": bars("triton"),
    "triton_memory": memory(("triton",)),
    "triton_counters": counters(("triton", "flash-attn", "sdpa-cudnn")),
}
"""Block name -> its text."""


def load(bars_file: Path) -> Results:
    """The bars, and as `profile` what `fabench profile` kept in the same folder."""
    results: Results = json.loads(bars_file.read_text())
    profile = bars_file.with_name("profile.json")
    return {**results, "profile": json.loads(profile.read_text())} if profile.exists() else results


def main(argv: Sequence[str]) -> None:
    if len(argv) != 1:
        sys.exit("usage: python tests/gpu/kernel_figures.py KERNEL_BARS.json")
    results = load(Path(argv[0]))
    for readme in READMES:
        readme.write_text(fill(readme.read_text(), results))


if __name__ == "__main__":
    main(sys.argv[1:])
