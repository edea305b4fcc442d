"""Are the in-repo kernels right, and as fast as they are meant to be? `python tests/gpu/kernel_bars.py --seconds 300`.

First everything is compiled, in parallel, and a handful of cases that cover what the kernels take are compared with
fp64. Then forward and backward are timed in one process through fabench's own measuring code, in the burst regime, all
backends of a case interleaved; cuda-v1 is timed over batch x heads, and the memory of each kernel is read. Nothing
starts after --seconds; what was left out is named. The last lines are the bars. --out gets a JSON file, from which
tests/gpu/kernel_figures.py fills the kernels' READMEs. Exits with 1 if a kernel is wrong, with 3 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel_bench import LENGTHS, OURS, V1_HEADS, Bench, Row, Shape, cores, smaller, sweep, warm, workers

Results = dict[str, Any]


class Clock:
    """How much of --seconds is left."""

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds = time.perf_counter(), seconds

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    @property
    def over(self) -> bool:
        return self.spent > self.seconds


def covering(cases: Sequence[Any], features: Callable[[Any], set[str]]) -> list[Any]:
    """A few cases that between them have every feature that any case has: greedily, the one with most new ones next."""
    left, chosen = set().union(*map(features, cases)), []
    while left:
        best = max(cases, key=lambda case: len(features(case) & left))
        chosen.append(best)
        left -= features(best)
    return chosen


def cuda_features(case: tuple[Any, ...]) -> set[str]:
    """What sets a case of cuda_check apart: which kernel is compiled for it, and which way it takes through it."""
    from fabench_backends.cuda_flash.configs import bucket

    _, heads, kv_heads, Nq, Nk, d, dv, causal, window, alignment, softcap, scale, dtype = case
    mask = "softcap" if softcap else "band" if causal or window else "none"
    found = {f"{bucket(max(d, dv))} {mask}", f"{dtype}", f"window {window is not None}", f"padded {d % 32 > 0}"}
    found |= {f"{alignment} {(Nq > Nk) - (Nq < Nk)} {causal}", f"scale {scale}", f"dv {(d > dv) - (d < dv)}"}
    return found | {f"group {heads // kv_heads > 1}", f"few {Nq <= 1}", f"empty {Nk == 0}"}


def triton_features(case: Row) -> set[str]:
    """The same of triton_check's cases: dtype, head dim, configuration, layout, and each option that is set."""
    plain = {"Nq", "Nk", "heads", "kv_heads", "batch", "seed", "configs"}
    found = {f"{key} {value}" for key, value in case.items() if key not in plain}
    return found | {f"{kernel} {c[:5]}" for kernel, c in case.get("configs", {}).items()}


def check_cuda(everything: bool) -> list[str]:
    """What is wrong with cuda-v1 and cuda-v2, deterministic mode and a replayed graph included."""
    import cuda_check

    cases = cuda_check.CASES if everything else covering(cuda_check.CASES, cuda_features)
    wrong = []
    for name, chosen, options in (
        ("cuda-v2", cases, {"deterministic": False}),
        ("cuda-v2-deterministic", cases, {"deterministic": True}),
        ("cuda-v1", [c for c in cases if cuda_check.takes_v1(c)], {"deterministic": False, "v1": True}),
    ):
        print(f"{name}: ", end="", flush=True)
        rows = cuda_check.check(chosen, **options)
        wrong += [f"{name} {row['case']} {row.get('problem', '')}" for row in rows if not row["ok"] or "problem" in row]
    return wrong if cuda_check.graph() else [*wrong, "cuda-v2: a replayed graph"]


def check_triton(pool: Any, everything: bool) -> list[str]:
    """What is wrong with triton."""
    import triton_check

    cases = [*triton_check.configuration_cases(), *triton_check.shape_cases()]
    cases = cases if everything else covering(cases, triton_features)
    wrong = [
        f"triton {case} {errors}"
        for case, errors, _ in pool.map(triton_check.check, cases, chunksize=1)
        if not max(errors.values()) <= 1.0
    ]
    print(f"triton: {len(cases) - len(wrong)} of {len(cases)} right", flush=True)
    return wrong


def compile_all(arch: str, jobs: int) -> None:
    """The CUDA kernels into their cache, by the command that users have."""
    from click.testing import CliRunner

    from fabench.cli import main as fabench

    result = CliRunner().invoke(fabench, ["kernels", "build", "--arch", arch, "--jobs", str(jobs)])
    print(result.output.strip(), flush=True)


def time_all(bench: Bench, shapes: Sequence[Shape], clock: Clock, rows: list[Row]) -> list[str]:
    """Time forward and backward of every shape; what there was no time for is returned by name."""
    left = []
    for shape in shapes:
        names = [n for n in bench.names if n != "cuda-v1" or shape.batch * shape.heads >= V1_HEADS or bench.dry]
        for direction in ("forward", "backward"):
            if clock.over:
                left.append(f"{direction} {shape.name}")
                continue
            rows += bench.timed(shape, direction, names)
    return left


V1_SHAPES = [Shape(64, N, False, heads // 16, 16) for N in (4096, 1024) for heads in (128, 16, 256)]


def memory_all(bench: Bench) -> list[Row]:
    """The workspaces of our kernels at two lengths."""
    found = []
    for N in (2048, 4096):
        shape = Shape(128, N, True, 4, 16)
        for name in OURS:
            for direction in ("forward", "backward"):
                if name in bench.names:
                    found.append(bench.memory(smaller(shape) if bench.dry else shape, direction, name))
    return [row for row in found if row is not None]


def ratios(rows: Sequence[Row], backend: str, rival: str, direction: str) -> list[float]:
    """Speed over the rival's, case by case, where both have one."""
    speed: dict[str, dict[Any, float]] = {}
    for row in rows:
        if row["direction"] == direction and "ns" in row:
            place = (row["d"], row["N"], row["causal"], row["batch"], row["heads"])
            speed.setdefault(row["backend"], {})[place] = row["tflops"]
    mine, theirs = speed.get(backend, {}), speed.get(rival, {})
    return [mine[place] / theirs[place] for place in mine if place in theirs]


def bar(name: str, values: Sequence[float], mean: float | None, least: float | None = None) -> Row:
    """A bar on the geometric mean of `values`, and perhaps on the least of them; met is None where there are none."""
    if not values:
        return {"bar": name, "cases": 0, "met": None}
    found = math.exp(sum(map(math.log, values)) / len(values))
    met = (mean is None or found >= mean) and (least is None or min(values) >= least)
    return {
        "bar": name, "cases": len(values), "geomean": found, "least": min(values), "wanted": mean,
        "least_wanted": least, "met": met,
    }  # fmt: skip


def bars(results: Results) -> list[Row]:
    """All that the kernels are meant to reach."""
    rows, v1 = results["rows"], results["v1"]
    found = []
    for rival in ("sdpa-flash", "flash-attn"):
        found += [
            bar(f"cuda-v2 forward / {rival}", ratios(rows, "cuda-v2", rival, "forward"), 1.0, 0.92),
            bar(f"cuda-v2 backward / {rival}", ratios(rows, "cuda-v2", rival, "backward"), 0.95),
        ]
    found += [
        bar("triton forward / flex", ratios(rows, "triton", "flex", "forward"), 1.05),
        bar("triton backward / flex", ratios(rows, "triton", "flex", "backward"), 0.95),
    ]
    speeds = [r["tflops"] for r in (*rows, *v1) if r["backend"] == "cuda-v1" and r["direction"] == "forward"
              and "ns" in r and r["batch"] * r["heads"] >= V1_HEADS]  # fmt: skip
    found.append(bar(f"cuda-v1 forward TFLOP/s, batch x heads >= {V1_HEADS}", speeds, None, 60.0))
    agreement = [min(r["tflops"] / p, p / r["tflops"]) for r, p in predicted(v1)]
    found.append(bar(f"cuda-v1 forward / prediction, batch x heads < {V1_HEADS}", agreement, None, 1 / 1.2))
    spare = [r["expected_bytes"] / max(r["workspace_bytes"], 1) for r in results["memory"]]
    found.append(bar("LSE + accumulators / workspace", spare, None, 1 / 1.1))
    return found


def predicted(v1: Sequence[Row]) -> list[tuple[Row, float]]:
    """Rows with fewer heads, and what they should reach: heads times the rate a head has where there are V1_HEADS."""
    own = [row for row in v1 if row["backend"] == "cuda-v1" and "ns" in row]
    rate = {row["N"]: row["tflops"] / V1_HEADS for row in own if row["batch"] * row["heads"] == V1_HEADS}
    few = [row for row in own if row["batch"] * row["heads"] < V1_HEADS and row["N"] in rate]
    return [(row, row["batch"] * row["heads"] * rate[row["N"]]) for row in few]


def show(results: Results) -> str:
    """The few lines worth reading on a terminal; the bars last."""
    lines, cases = [], dict[str, list[str]]()
    for row in (*results["rows"], *results["v1"]):
        shape = f"d{row['d']} {'causal' if row['causal'] else 'full'} N={row['N']} b{row['batch']} h{row['heads']}"
        host = f" ({row['t_host_ns'] / 1e3:.0f} us host)" if row.get("t_host_ns") else ""
        flags = "".join(f" {flag}" for flag in row.get("flags", ()))
        said = f"{row['tflops']:.0f}{host}{flags}" if "ns" in row else row["error"]
        cases.setdefault(f"{row['direction']:8} {shape:30}", []).append(f"{row['backend']} {said}")
    lines += [f"{case} {', '.join(found)}" for case, found in cases.items()]
    for row in results["memory"]:
        used, meant = row["workspace_bytes"] / 2**20, row["expected_bytes"] / 2**20
        lines.append(f"memory {row['backend']} {row['direction']} N={row['N']}: {used:.1f} MiB, meant {meant:.1f} MiB")
    lines += [f"left out: {what}" for what in results["left_out"]]
    lines += [f"WRONG {what}" for what in results["wrong"]]
    for row in results["bars"]:
        if row["met"] is None:
            lines.append(f"-      {row['bar']}: no case measured")
            continue
        wanted = ", ".join(f"{k} {row[w]:.2f}" for k, w in (("mean", "wanted"), ("least", "least_wanted")) if row[w])
        lines.append(
            f"{'met' if row['met'] else 'MISSED':6} {row['bar']}: mean {row['geomean']:.3f}, least {row['least']:.3f} "
            f"over {row['cases']} (wanted {wanted})"
        )
    return "\n".join(lines)


def about(bench: Bench) -> Results:
    import torch

    from fabench.measure.canary import measure_canary

    versions = {n: bench.backends[n].versions() for n in ("cuda-v2", "triton") if n in bench.names}
    reading = measure_canary(bench.engine, [bench.dtype], "cpu" if bench.dry else "burst")
    return {
        "device": bench.device.name, "torch": torch.__version__, "python": platform.python_version(),
        "versions": {key: value for found in versions.values() for key, value in found.items()},
        "gemm_tflops": reading.gemm_flops[bench.dtype] / 1e12, "samples": bench.samples,
        "rows": [], "v1": [], "memory": [], "wrong": [],
        "left_out": [f"{name}: {why}" for name, why in bench.left_out.items()],
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="no part and no case starts after this long")
    parser.add_argument("--out", type=Path, default=Path("kernel_bars.json"))
    parser.add_argument("--check", choices=["none", "handful", "all"], default="handful", help="cases against fp64")
    parser.add_argument("--N", nargs="*", type=int, default=list(LENGTHS), help="lengths, in the order to time them")
    parser.add_argument("--d", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--samples", type=int, default=12, help="timed calls of each backend and case")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes that compile and check")
    parser.add_argument(
        "--dry", action="store_true", help="try the script on a CPU, with other backends in place of ours"
    )
    options = parser.parse_args(argv)
    clock, shapes = Clock(options.seconds), sweep(options.N, options.d)
    bench = Bench(options.dry, options.samples)
    results = about(bench)
    if not options.dry:
        from fabench_backends.cuda_flash.build import architecture

        assert bench.device.capability is not None
        compile_all(architecture(bench.device.capability), options.jobs)
        with workers(options.jobs) as pool:
            warming = [pool.submit(warm, shape) for shape in shapes]
            if options.check != "none":
                results["wrong"] = check_cuda(options.check == "all") + check_triton(pool, options.check == "all")
            for future in warming:
                future.result()
        print(f"compiled and checked after {clock.spent:.0f} s, {len(results['wrong'])} wrong", flush=True)
    else:
        shapes = [smaller(shape) for shape in shapes]
    v1 = [name for name in ("cuda-v1", "cuda-v2") if name in bench.names]
    try:
        results["memory"] = memory_all(bench)
        for shape in V1_SHAPES:
            if clock.over:
                results["left_out"].append(f"v1 {shape.name}")
            else:
                results["v1"] += bench.timed(smaller(shape) if options.dry else shape, "forward", v1)
        results["left_out"] += time_all(bench, shapes, clock, results["rows"])
    finally:  # what was measured is kept, whatever happens
        results["bars"] = bars(results)
        results["wall_s"] = clock.spent
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(show(results))
    print(f"{results['device']}, GEMM {results['gemm_tflops']:.0f} TFLOP/s, {clock.spent:.0f} s, {options.out}")
    if results["wrong"]:
        return 1
    return 3 if any(row["met"] is False for row in results["bars"]) else 0


if __name__ == "__main__":
    sys.exit(main())
