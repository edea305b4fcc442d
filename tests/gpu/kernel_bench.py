"""What the bars of the in-repo kernels are measured with: cases, and backends timed together as `fabench run` does."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends"), str(ROOT / "tests"), str(Path(__file__).parent)]

from fabench import environment, registry  # noqa: E402
from fabench.case import Case  # noqa: E402
from fabench.cost import cost  # noqa: E402
from fabench.inputs import make  # noqa: E402
from fabench.launches import Launches  # noqa: E402
from fabench.measure.engine import engine_for  # noqa: E402
from fabench.measure.memory import measure_memory  # noqa: E402
from fabench.measure.method import method_for  # noqa: E402
from fabench.measure.sampling import Candidate, Limits, measure  # noqa: E402
from fabench.outcome import sentence  # noqa: E402

HIDDEN, TOKENS = 2048, 16384
TIMED = ("cuda-v1", "cuda-v2", "triton", "sdpa-flash", "flash-attn", "flex", "sdpa-cudnn")
OURS = ("cuda-v1", "cuda-v2", "triton")
V1_HEADS = 128
"""batch x heads from which cuda-v1, with one CTA a head, is timed beside the others."""
LENGTHS = (4096, 16384, 2048, 8192)
"""In the order in which they are timed, so that what a short run leaves out matters least."""
STAND_INS = {"cuda-v1": "naive", "cuda-v2": "online", "triton": "online", "sdpa-flash": "naive", "flex": "naive"}
"""--dry: who plays whom on a CPU, where the script is on trial and not the kernels."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One problem of the sweep, of which forward and backward are timed."""

    d: int
    N: int
    causal: bool
    batch: int
    heads: int

    def case(self, direction: str = "forward", dtype: str = "bf16") -> Case:
        return Case(
            batch=self.batch, heads=self.heads, Nq=self.N, Nk=self.N, d=self.d, causal=self.causal, dtype=dtype,
            direction=direction,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def name(self) -> str:
        return f"d{self.d} {'causal' if self.causal else 'full'} N={self.N} batch {self.batch} heads {self.heads}"


def sweep(lengths: Sequence[int] = LENGTHS, widths: Sequence[int] = (64, 128)) -> list[Shape]:
    """Hidden 2048 and 16k tokens."""
    return [
        Shape(d, N, causal, max(1, TOKENS // N), HIDDEN // d)
        for N in lengths
        for d in widths
        for causal in (False, True)
    ]


@dataclass
class Bench:
    """The device, its engine, and the backends that are here."""

    dry: bool
    samples: int = 12
    left_out: dict[str, str] = field(default_factory=dict)
    """Backend -> why it is not timed."""

    def __post_init__(self) -> None:
        self.device = environment.resolve("cpu" if self.dry else "cuda")
        self.engine: Any = engine_for(self.device)
        self.dtype = "fp32" if self.dry else "bf16"
        shipped = registry.shipped()
        self.backends = {name: shipped[played] for name, played in STAND_INS.items()} if self.dry else shipped
        self.names = []
        for name in TIMED:
            backend = self.backends.get(name)
            why = "no such backend" if backend is None else backend.unavailable(self.device)
            if why:
                self.left_out[name] = why
            else:
                self.names.append(name)

    def timed(self, shape: Shape, direction: str, names: Sequence[str]) -> list[Row]:
        """A row a backend, windows interleaved: median time, TFLOP/s of exact pairs, host time."""
        case = shape.case(direction, self.dtype)
        taking = [name for name in names if not self.backends[name].reasons(case, self.device)]
        launches = Launches(case, make(case, self.device.torch_name), self.engine)
        base = {"direction": direction, **vars(shape)}
        rows: list[Row] = []
        prepared = []
        for name in taking:
            try:
                prepared.append((self.backends[name].prepare(case, self.device), name))
            except Exception as error:  # one backend's failure must not cost the others' rows
                rows.append({"backend": name, **base, "error": sentence(error)})
        for group in launches.groups(prepared):
            rows += self._group(case, base, launches, group)
        return rows

    def _group(self, case: Case, base: Row, launches: Launches, group: Any) -> list[Row]:
        candidates, rows, calls = [], [], {}
        for call, name in group:
            try:
                launches.open(name, call)
                launch = launches.launcher(name)
                launch(0)
                self.engine.synchronize()
            except Exception as error:
                rows.append({"backend": name, **base, "error": sentence(error)})
                launches.close(name)
                continue
            like = (1, self.samples) if self.engine.asynchronous else None
            candidates.append(Candidate(name, launch, launches.rotation, like=like))
            calls[name] = call
        method = method_for("cpu" if self.dry else "burst", self.device, case.inputs)
        limits = Limits(seconds=0.01 if self.dry else 0.5, half_width=1.0)
        for name, out in measure(candidates, method, limits, self.engine, lambda *_: None).items():
            launches.close(name)
            if not out.samples_ns:
                rows.append({"backend": name, **base, "error": out.error or out.unsupported})
                continue
            ns, tuned = median(out.samples_ns), calls[name].tuned
            rows.append(
                {
                    "backend": name, **base, "ns": ns, "n": len(out.samples_ns),
                    "tflops": cost(case).flops / ns / 1e3, "t_host_ns": out.t_host_ns, "flags": sorted(out.flags),
                    "tuned": tuned() if tuned else None,
                }
            )  # fmt: skip
        return rows

    def memory(self, shape: Shape, direction: str, name: str) -> Row | None:
        """Bytes of one call beyond inputs, outputs and what the forward saved, beside LSE + accumulators."""
        case = shape.case(direction, self.dtype)
        if self.backends[name].reasons(case, self.device):
            return None
        prepared = self.backends[name].prepare(case, self.device)
        found = measure_memory(case, prepared, make(case, self.device.torch_name), self.engine)
        return {
            "backend": name, "direction": direction, **vars(shape), "workspace_bytes": found.workspace_bytes,
            "expected_bytes": accumulators(name, case),
        }  # fmt: skip


def accumulators(name: str, case: Case) -> int:
    """Bytes in float32 that the algorithm keeps in global memory: LSE in a forward; delta, LSE and dQ in a backward."""
    rows = 4 * case.batch * case.heads * case.Nq
    if case.direction == "forward":
        return rows * (1 + case.dv + 2) if name == "cuda-v1" else rows  # v1 also keeps O, m and l
    return rows if name == "triton" else rows * (case.d + 2)  # triton: delta; the CUDA kernels: dQ, delta, LSE


def warm(shape: Shape) -> str:
    """Compile FlexAttention and the Triton kernels of a shape, so that the timing process finds them in the caches."""
    bench = Bench(dry=False)
    for name in ("flex", "triton"):
        for direction in ("forward", "backward"):
            case = shape.case(direction)
            if name in bench.names and not bench.backends[name].reasons(case, bench.device):
                with contextlib.suppress(Exception):  # what fails here will fail, and be told, when it is timed
                    launches = Launches(case, make(case, bench.device.torch_name), bench.engine)
                    launches.open(name, bench.backends[name].prepare(case, bench.device))
                    launches.launcher(name)(0)
                    bench.engine.synchronize()
    return shape.name


@contextlib.contextmanager
def workers(processes: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Fresh processes; those at work when the block is left are let go."""
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def smaller(shape: Shape) -> Shape:
    """For --dry."""
    return replace(shape, N=max(32, shape.N // 256), batch=1, heads=2, d=shape.d // 4)
