"""Checks and times the CUDA kernels on a GPU, several variants a call: `python tests/gpu/cuda_check.py --help`.

Self-contained: needs torch and cuda-core. Results are compared with fp64 on the GPU; times are medians of windows of at
most 10 ms of work with 90 ms of rest, the L2 flushed and a spin kernel ahead of the start event, all candidates
interleaved. The table comes last; everything goes to $OUT/cuda_check_TIME.json.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    # Bare packages in place of the real ones, whose __init__ import more than this script needs.
    for name, folder in {
        "fabench": ROOT / "harness/fabench",
        "fabench_backends": ROOT / "backends/fabench_backends",
        "fabench_backends.cuda_flash": ROOT / "backends/fabench_backends/cuda_flash",
    }.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]

import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from fabench_backends.cuda_flash import api, build, configs, v1_ops, v2_ops  # noqa: E402
from fabench_backends.cuda_flash.configs import BackwardTile, Config, ForwardTile, Tile  # noqa: E402

BF16, FP16 = torch.bfloat16, torch.float16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass
class Variant:
    """What replaces the default: for one kernel and head dim another source, tile, or macros."""

    kernel: str = ""
    d: int = 0
    source: str = ""
    tile: Tile | None = None
    macros: dict[str, str] = dataclasses.field(default_factory=dict)


F, B = "flash_v2_fwd", "flash_v2_bwd"
VARIANTS: dict[str, Variant] = {
    "base": Variant(),
    "f64 kv128": Variant(F, 64, F, ForwardTile(4, 2, 128, 2)),
    "b64 8 warps": Variant(B, 64, B, BackwardTile(8, 8, 2, 32, 1, 1)),
}
"""What --time compares: 'f...' in the forward, 'b...' in the backward. Add a line for each idea to try."""

original_config = configs.config
active = "base"


def variant_config(kernel: str, d: int, dtype: str, mask: Any, arch: str) -> Config:
    """configs.config with the active variant's tile in it."""
    v = VARIANTS[active]
    if v.tile is not None and kernel == v.kernel and configs.bucket(d) == v.d:
        return Config(v.source, dtype, v.tile, v.d, mask, tuple(v.macros.items()))
    return original_config(kernel, d, dtype, mask, arch)


configs.config = variant_config


def compile_one(config: Config, arch: str) -> build.Stats:
    """Into the cache."""
    return build.build(config, arch).stats


def compile_all(names: list[str], arch: str) -> dict[str, Any]:
    """Every configuration that will run, in parallel, into the cache."""
    jobs: dict[str, Config] = {}
    for name in names:
        v = VARIANTS[name]
        if v.tile is not None:
            for mask in ("none", "band"):
                jobs[f"{name} {mask}"] = Config(v.source, "bf16", v.tile, v.d, mask, tuple(v.macros.items()))
    for config in configs.configs(arch):
        jobs[config.name] = config
    spawn = multiprocessing.get_context("fork")  # NVRTC's logs suit processes, not threads; CUDA is not started yet
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        stats = dict(zip(jobs, pool.map(compile_one, jobs.values(), [arch] * len(jobs)), strict=True))
    for name, s in stats.items():
        if s.faults(arch):
            print(f"  {name}: {s.registers} registers, {'; '.join(s.faults(arch))}")
    return {name: s.__dict__ for name, s in stats.items()}


def reference(q, k, v, causal, window, alignment, softcap, scale, dO, dLSE):
    """fp64 O, LSE, dQ, dK, dV and the mask."""
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    S = (q @ k.repeat_interleave(group, 1).mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        S = softcap * torch.tanh(S / softcap)
    Nq, Nk = S.shape[-2:]
    low, high = api.band(Nq, Nk, causal, window, alignment)
    i, j = torch.arange(Nq, device=DEVICE)[:, None], torch.arange(Nk, device=DEVICE)[None]
    seen = (i + low <= j) & (j <= i + high)
    S = S.masked_fill(~seen, -math.inf)
    empty = ~seen.any(1)
    LSE = torch.logsumexp(S, -1)
    P = torch.exp(S - LSE.masked_fill(-math.inf == LSE, 0)[..., None])
    O = P @ v.repeat_interleave(group, 1)
    loss = (O * dO.double()).sum()
    if dLSE is not None:
        loss = loss + (LSE * dLSE.double())[..., ~empty].sum()
    grads = torch.autograd.grad(loss, (q, k, v))
    return O.detach(), LSE.detach(), *grads


CASES = [
    # B H Hkv Nq Nk d dv causal window alignment softcap scale dtype
    (2, 3, 3, 128, 128, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (2, 3, 3, 128, 128, 128, 128, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 512, 512, 64, 64, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 512, 512, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (2, 4, 2, 257, 257, 64, 64, True, None, "bottom_right", 0, None, FP16),
    (2, 4, 1, 193, 321, 128, 128, True, None, "bottom_right", 0, None, FP16),
    (1, 2, 2, 321, 193, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 321, 193, 64, 64, True, None, "top_left", 0, None, BF16),
    (1, 2, 2, 113, 203, 64, 64, True, None, "top_left", 0, None, BF16),
    (1, 2, 2, 400, 400, 64, 64, False, (33, 17), "bottom_right", 0, None, BF16),
    (1, 2, 2, 400, 300, 128, 128, False, (64, 0), "bottom_right", 0, None, BF16),
    (1, 2, 2, 300, 400, 128, 128, True, (64, 0), "top_left", 0, None, BF16),
    (1, 2, 2, 200, 200, 64, 64, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 2, 200, 200, 128, 128, False, None, "bottom_right", 30.0, None, FP16),
    (1, 2, 2, 97, 129, 64, 64, False, None, "bottom_right", 0, -0.1, BF16),
    (1, 2, 2, 97, 97, 64, 64, True, None, "bottom_right", 0, 0.0, BF16),
    (1, 2, 2, 97, 97, 128, 128, False, None, "bottom_right", 0, 1.0, BF16),
    (1, 2, 2, 129, 1, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 1, 799, 128, 128, True, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 1, 8192, 64, 64, False, None, "bottom_right", 0, None, BF16),
    (1, 2, 2, 5, 0, 64, 64, False, None, "bottom_right", 0, None, BF16),
    *(
        (1, 4, 2, 191, 255, d, dv, c, None, "bottom_right", 0, None, t)
        for d, dv, t in [
            (8, 8, BF16), (16, 16, FP16), (32, 32, BF16), (40, 40, FP16), (72, 72, BF16), (80, 80, FP16),
            (96, 96, BF16), (104, 104, BF16), (160, 160, FP16), (192, 192, BF16), (256, 256, BF16),
            (64, 128, BF16), (128, 64, FP16), (192, 128, BF16),
        ]
        for c in (False, True)
    ),
    (1, 2, 1, 200, 200, 32, 32, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 96, 96, True, (50, 0), "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 192, 192, True, None, "bottom_right", 5.0, None, BF16),
    (1, 2, 1, 200, 200, 256, 256, True, None, "bottom_right", 5.0, None, BF16),
]  # fmt: skip


def error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """Worst row error over the mean row norm; inf where the NaN or inf masks differ."""
    out = out.double()
    if out.numel() == 0:
        return 0.0
    if not torch.equal(torch.isfinite(out), torch.isfinite(ref)):
        return math.inf
    finite = torch.isfinite(ref)
    out, ref = out.masked_fill(~finite, 0), ref.masked_fill(~finite, 0)
    if ref.dim() == 3:
        return (out - ref).abs().max().item()
    scale = ref.norm(dim=-1).pow(2).mean().sqrt().item()
    return ((out - ref).norm(dim=-1).max() / (scale or 1)).item()


def check(cases: list[tuple], deterministic: bool, v1: bool = False) -> list[dict]:
    """Every case against fp64, forward and backward."""
    rows = []
    for case in cases:
        batch, H, Hkv, Nq, Nk, d, dv, causal, window, alignment, softcap, scale, dtype = case
        torch.manual_seed(0)

        def make(heads, n, dim, dtype=dtype, batch=batch):
            # memory order [batch, n, heads, dim] with the rows inside a wider one
            return torch.randn(batch, n, heads, dim + 8, device=DEVICE).to(dtype)[..., :dim].transpose(1, 2)

        q, k, v = make(H, Nq, d), make(Hkv, Nk, d), make(Hkv, Nk, dv)
        dO, dLSE = make(H, Nq, dv), torch.randn(batch, H, Nq, device=DEVICE)
        ref = reference(q, k, v, causal, window, alignment, softcap, scale, dO, dLSE)
        for t in (q, k, v):
            t.requires_grad_()
        row = {"case": " ".join(map(str, case)).replace("torch.", "")}
        try:
            if v1:
                O, LSE = v1_ops.attention(q, k, v, causal, scale, alignment, True)
            else:
                O, LSE = v2_ops.attention(q, k, v, causal, scale, window, softcap, alignment, True, deterministic)
            seen = torch.isfinite(LSE)
            grads = torch.autograd.grad((O, LSE), (q, k, v), (dO, dLSE * seen))
            torch.cuda.synchronize()
            again = (
                v1_ops.attention(q, k, v, causal, scale, alignment, True)
                if v1
                else v2_ops.attention(q, k, v, causal, scale, window, softcap, alignment, True, deterministic)
            )
            repeat = [*again, *torch.autograd.grad(again, (q, k, v), (dO, dLSE * seen))]
            for name, a, b in zip(("O", "LSE", "dQ", "dK", "dV"), (O, LSE, *grads), repeat, strict=True):
                if (name != "dQ" or deterministic or v1) and not torch.equal(a, b):
                    row["problem"] = f"{name} differs from run to run"
                    print("NOT REPEATABLE", row["case"], name, flush=True)
            errors = [error(a, b) for a, b in zip((O.detach(), LSE.detach(), *grads), ref, strict=True)]
        except Exception as problem:
            if "illegal" in str(problem) or "misaligned" in str(problem):
                raise
            errors, row["problem"] = [math.inf] * 5, str(problem)[:300]
        low_precision = 2.5e-2 if dtype is BF16 else 4e-3
        limits = [low_precision, 2e-5 * (1 + (softcap or 1)), *[2 * low_precision] * 3]
        row |= {"errors": errors, "ok": all(e <= limit for e, limit in zip(errors, limits, strict=True))}
        rows.append(row)
        if not row["ok"]:
            print("WRONG", row["case"], " ".join(f"{e:.2e}" for e in errors), row.get("problem", ""), flush=True)
    worst = [max(r["errors"][i] for r in rows if r["ok"]) for i in range(5)] if any(r["ok"] for r in rows) else []
    right = sum(row["ok"] for row in rows)
    print(f"{right} of {len(rows)} right; worst O LSE dQ dK dV", " ".join(f"{w:.1e}" for w in worst))
    return rows


def graph() -> bool:
    """True if a captured graph, replayed with new inputs, gives what a plain call gives."""
    q, k, v = (torch.randn(2, 4, 300, 64, device=DEVICE).to(BF16) for _ in range(3))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        v2_ops.attention(q, k, v, True)
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            O = v2_ops.attention(q, k, v, True)
        q.normal_()
        captured.replay()
        stream.synchronize()
    return torch.equal(O, v2_ops.attention(q, k, v, True))


def sdpa_flash(q, k, v, causal):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


class Clock:
    """Times launches in bursts."""

    def __init__(self, rest: float) -> None:
        self.flush_buffer = torch.empty(1 << 28, dtype=torch.int8, device=DEVICE)
        self.rest = rest

    def window(self, launch, estimate: float) -> list[float]:
        """Seconds of each of as many calls as fit 10 ms."""
        time.sleep(self.rest)
        events = []
        for _ in range(max(1, min(8, int(0.008 / (estimate + 1e-4))))):
            self.flush_buffer.zero_()
            torch.cuda._sleep(1_200_000)
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            launch()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in events]

    def compare(self, launches: dict, windows: int) -> dict[str, float]:
        """Median seconds of each candidate, windows interleaved."""
        estimates, samples = {}, {name: [] for name in launches}
        for name, launch in launches.items():
            launch()
            estimates[name] = min(self.window(launch, 0.008))
        order = list(launches)
        for w in range(windows):
            for name in order if w % 2 else order[::-1]:
                samples[name] += self.window(launches[name], estimates[name])
        return {name: statistics.median(s) for name, s in samples.items()}


def timed(names: list[str], direction: str, args) -> dict[str, dict[str, float]]:
    """TFLOP/s by shape and candidate."""
    global active
    clock, table = Clock(args.rest), {}
    for d in args.d:
        for causal in (False, True):
            for N in args.N:
                heads, batch = 2048 // d, max(1, 16384 // N)
                torch.manual_seed(0)
                q, k, v, dO = (torch.randn(batch, heads, N, d, device=DEVICE).to(BF16) for _ in range(4))
                for t in (q, k, v):
                    t.requires_grad_(direction == "bwd")
                launches, want = {}, direction[0]
                for name in names:
                    of_direction = name in ("fa2", "base", "v1") or name[0] == want
                    if VARIANTS.get(name, Variant()).d not in (0, d) or not of_direction:
                        continue
                    if name == "v1" and batch * heads < 128:
                        continue
                    if name == "fa2":
                        call = lambda: sdpa_flash(q, k, v, causal)
                    elif name == "v1":
                        call = lambda: v1_ops.attention(q, k, v, causal)
                    else:
                        call = lambda name=name: select(name, lambda: v2_ops.attention(q, k, v, causal))
                    if direction == "bwd":
                        O = call()
                        inner = lambda O=O: torch.autograd.grad(O, (q, k, v), dO, retain_graph=True)
                        call = lambda name=name, inner=inner: select(name, inner)
                    launches[name] = call
                seconds = clock.compare(launches, args.windows)
                flops = 4 * batch * heads * N * N * d * (0.5 if causal else 1) * (2.5 if direction == "bwd" else 1)
                label = f"{direction} d{d} {'causal' if causal else 'full'} N={N // 1024}k"
                table[label] = {name: flops / s * 1e-12 for name, s in seconds.items()}
    return table


def select(name: str, call):
    """Run `call` with a variant active."""
    global active
    active = name if name in VARIANTS else "base"
    try:
        return call()
    finally:
        active = "base"


def show(table: dict[str, dict[str, float]]) -> None:
    """TFLOP/s, one line a shape; the last lines are geometric means over FA2."""
    ratios: dict[str, list[float]] = {}
    for label, row in table.items():
        print(label.ljust(22), "  ".join(f"{n} {x:.0f}" for n, x in row.items()))
        for name, x in row.items():
            if "fa2" in row and name != "fa2":
                ratios.setdefault(f"{label.split()[0]} {label.split()[1]} {name}", []).append(x / row["fa2"])
    for name, values in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, values)))
        print(f"{name:28} {mean:.3f}x FA2, least {min(values):.3f}x over {len(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with fp64")
    parser.add_argument("--deterministic", action="store_true", help="compare the deterministic mode with fp64")
    parser.add_argument("--time", nargs="*", default=[], choices=["fwd", "bwd"])
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--d", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--N", nargs="*", type=int, default=[4096, 16384])
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--rest", type=float, default=0.09)
    parser.add_argument("--arch", default="sm_90a", help="what to compile for, before CUDA starts")
    parser.add_argument("--tiny", action="store_true", help="a few small launches, for compute-sanitizer")
    parser.add_argument("--once", help="run one variant's forward and backward once, for a profiler: NAME,d,causal,N")
    args = parser.parse_args()
    if args.tiny:
        for d in (64, 128, 256):
            q, k, v = (torch.randn(1, 2, n, d, device=DEVICE).to(BF16).requires_grad_() for n in (130, 200, 200))
            O = v2_ops.attention(q, k, v, True, deterministic=d == 64)
            torch.autograd.grad(O, (q, k, v), torch.ones_like(O))
            if d <= 128:
                O = v1_ops.attention(q, k, v, True)
                torch.autograd.grad(O, (q, k, v), torch.ones_like(O))
        torch.cuda.synchronize()
        print("tiny launches done")
        return
    if args.once:
        name, d, causal, N = args.once.split(",")
        heads, batch = 2048 // int(d), max(1, 16384 // int(N))
        q, k, v, dO = (torch.randn(batch, heads, int(N), int(d), device=DEVICE).to(BF16) for _ in range(4))
        q.requires_grad_()
        for _ in range(2):
            O = (
                sdpa_flash(q, k, v, causal == "1")
                if name == "fa2"
                else select(name, lambda: v2_ops.attention(q, k, v, causal == "1"))
            )
            select(name, lambda O=O: torch.autograd.grad(O, q, dO))
        torch.cuda.synchronize()
        return
    start = time.time()
    out: dict[str, Any] = {"nvrtc": build.nvrtc_version()}
    out["stats"] = compile_all(args.variants, args.arch)
    out["device"] = torch.cuda.get_device_name()
    print(f"{out['device']}, NVRTC {out['nvrtc']}, compiled after {time.time() - start:.0f} s", flush=True)
    if args.check:
        out["check"] = check(CASES, False)
        print("graph replay", "right" if graph() else "WRONG", flush=True)
        print("v1", end=": ")
        out["check v1"] = check([c for c in CASES if c[8] is None and not c[10] and max(c[5:7]) <= 128], False, v1=True)
        for name in args.variants:
            if name != "base":
                print(name, end=": ")
                some = [c for c in CASES if c[5] == (VARIANTS[name].d or 128) and c[-1] is BF16 and not c[-3]]
                out[f"check {name}"] = select(name, lambda some=some: check(some, False))
        print(f"checked after {time.time() - start:.0f} s", flush=True)
    if args.deterministic:
        print("deterministic", end=": ", flush=True)
        out["check_deterministic"] = check(CASES, True)
    out["tflops"] = {}
    for direction in args.time:
        out["tflops"] |= timed(["fa2", "v1", *args.variants], direction, args)
    print(f"timed after {time.time() - start:.0f} s", flush=True)
    show(out["tflops"])
    Path(os.environ.get("OUT", "."), f"cuda_check_{int(start)}.json").write_text(json.dumps(out, default=str))


if __name__ == "__main__":
    main()
