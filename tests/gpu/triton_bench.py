"""Proof and timing of the Triton kernels on one GPU: `python tests/gpu/triton_bench.py [--seconds 60]`.

First every configuration and a list of shapes are compared with fp64, in parallel processes. Then the kernels are
timed beside compiled FlexAttention and SDPA flash, interleaved window by window, in the burst regime: at most 10 ms of
work (the L2 flushed before each launch, a spinning kernel ahead of the start event), then 90 ms idle. A table comes
last; everything goes to $OUT/triton_bench.json. Prints FAIL lines and exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import triton_check

PROBLEMS = [(d, N, causal) for N in (4096, 16384, 2048, 8192) for d in (64, 128) for causal in (False, True)]
"""(d, N, causal) at hidden 2048 and 16k tokens."""
HIDDEN, TOKENS = 2048, 16384


def warm(problem: tuple[int, int, bool]) -> float:
    """Compile FlexAttention and our candidates for a problem, so that the timing process finds them in the caches."""
    started = time.perf_counter()
    tensors = make(*problem)
    for build in (flex, ours):
        build(tensors, problem)()[1]()
    return time.perf_counter() - started


def make(d: int, N: int, causal: bool) -> list[Any]:
    """q, k, v with gradients and dO, bf16, N(0, 1)."""
    import torch

    torch.manual_seed(0)
    shape = (TOKENS // N, HIDDEN // d, N, d)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    return [t.requires_grad_() for t in tensors[:3]] + tensors[3:]


def with_backward(forward: Any, tensors: list[Any]) -> Any:
    """A function that runs the forward and returns (forward, backward), both ready to be timed."""
    import torch

    q, k, v, do = tensors

    def prepare() -> tuple[Any, Any]:
        o = forward(q, k, v)
        inputs = [t.detach() for t in (q, k, v)]
        return lambda: forward(*inputs), lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    return prepare


def flex(tensors: list[Any], problem: tuple[int, int, bool]) -> Any:
    """Compiled FlexAttention, as a user would call it."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.config.recompile_limit = 1000
    _, N, causal = problem
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cuda") if causal else None
    return with_backward(lambda q, k, v: compiled(q, k, v, block_mask=mask), tensors)


def sdpa_flash(tensors: list[Any], problem: tuple[int, int, bool]) -> Any:
    """FlashAttention-2 as PyTorch ships it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def forward(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=problem[2])

    return with_backward(forward, tensors)


def ours(tensors: list[Any], problem: tuple[int, int, bool]) -> Any:
    """The Triton kernels through their public function."""
    from fabench_backends.triton_flash.api import attention

    return with_backward(lambda q, k, v: attention(q, k, v, causal=problem[2]), tensors)


def window(launch: Any, milliseconds: float, flush: Any) -> list[float]:
    """Times of the launches that fit in 10 ms (one at least), milliseconds."""
    import torch

    events = []
    for _ in range(max(1, min(5, int(10 / milliseconds)))):
        flush.zero_()
        torch.cuda._sleep(4_000_000)  # about 2 ms: longer than a host just woken takes to enqueue a backward
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        launch()
        pair[1].record()
        events.append(pair)
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def timings(problem: tuple[int, int, bool], flush: Any, windows: int) -> dict[str, float]:
    """Median milliseconds of each backend's forward and backward, windows interleaved."""
    import torch

    tensors = make(*problem)
    launches: dict[str, Any] = {}
    for name, build in {"triton": ours, "flex": flex, "sdpa-flash": sdpa_flash}.items():
        launches[f"{name} forward"], launches[f"{name} backward"] = build(tensors, problem)()
    first = {}
    for name, launch in launches.items():
        launch()
        torch.cuda.synchronize()
        first[name] = min(window(launch, 10, flush))
    samples: dict[str, list[float]] = {name: [] for name in launches}
    for index in range(windows):
        for name in list(launches) if index % 2 == 0 else list(launches)[::-1]:
            time.sleep(0.09)
            samples[name] += window(launches[name], first[name], flush)
    return {name: statistics.median(values) for name, values in samples.items()}


def tflops(problem: tuple[int, int, bool], name: str, milliseconds: float) -> float:
    """TFLOP/s by the exact count of attended pairs: forward 4, backward 10 operations a pair, head and column."""
    d, N, causal = problem
    pairs = N * (N + 1) // 2 if causal else N * N
    per_pair = 4 if "forward" in name else 10
    return per_pair * pairs * d * (TOKENS // N) * (HIDDEN // d) / milliseconds / 1e9


def gemm_tflops(flush: Any) -> float:
    """The measured ceiling: an 8192^3 bf16 product through cuBLAS, in bursts."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = [t for _ in range(3) for t in window(lambda: torch.mm(a, b), 2, flush)]
    return 2 * 8192**3 / statistics.median(times) / 1e9


def parity(pool: ProcessPoolExecutor) -> tuple[list[Any], int]:
    """Results of every check, and how many failed (each printed)."""
    cases = triton_check.configuration_cases() + triton_check.shape_cases()
    results, failed = [], 0
    for case, errors, seconds in pool.map(triton_check.check, cases, chunksize=2):
        results.append({"case": case, "errors": errors, "seconds": seconds})
        if not max(errors.values()) <= 1.0:
            failed += 1
            print("FAIL", case, {name: f"{error:.2g}x the bound" for name, error in errors.items()}, flush=True)
    return results, failed


def main() -> int:
    """Check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop starting new timings after this long")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--processes", type=int, default=15)
    options = parser.parse_args()
    started = time.perf_counter()
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(warm, problem) for problem in PROBLEMS]
        checks, failed = parity(pool)
        for future in compiled:
            future.result()
    print(f"{len(checks)} checks, {failed} failed, {time.perf_counter() - started:.0f} s", flush=True)

    import torch

    from fabench_backends.triton_flash import tuner

    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    gemm = gemm_tflops(flush)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for problem in PROBLEMS:
        if time.perf_counter() - began > options.seconds:
            print(f"not timed for want of time: {problem}")
            continue
        times = timings(problem, flush, options.windows)
        chosen = {kernel: config.label for kernel, config in tuner.last.items()}
        rows.append({"problem": problem, "milliseconds": times, "configurations": chosen})
    out = Path(os.environ.get("OUT", ".")) / "triton_bench.json"
    device = torch.cuda.get_device_name()
    out.write_text(json.dumps({"device": device, "gemm_tflops": gemm, "checks": checks, "rows": rows}, indent=1))

    print(f"{device}, torch {torch.__version__}, GEMM 8192 bf16 {gemm:.0f} TFLOP/s")
    print("TFLOP/s               triton   flex  flash2 | triton/flex, fraction of GEMM, configuration")
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    for direction in ratios:
        for row in sorted(rows, key=lambda r: r["problem"]):
            d, N, causal = row["problem"]
            speed = {name: tflops(row["problem"], f"{name} {direction}", row["milliseconds"][f"{name} {direction}"])
                     for name in ("triton", "flex", "sdpa-flash")}  # fmt: skip
            ratio = speed["triton"] / speed["flex"]
            ratios[direction].append(ratio)
            labels = "; ".join(v for k, v in row["configurations"].items() if direction in k)
            print(
                f"{direction:8} d{d:<3} N{N:<5} {'causal' if causal else 'full':6}",
                *(f"{value:6.0f}" for value in speed.values()),
                f"| {ratio:.2f} {speed['triton'] / gemm:.0%} {labels}",
            )
    for direction, values in ratios.items():
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(f"{direction}: geometric mean {mean:.3f}x flex, least {min(values):.3f}x, {len(values)} cases")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
