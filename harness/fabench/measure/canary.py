"""The canaries: a large GEMM, a large copy and an empty kernel. They sense drift, and are the measured roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fabench.measure.engine import Engine
from fabench.measure.pace import Pace
from fabench.measure.rules import RULES, Rules
from fabench.measure.sampling import quiet_gc
from fabench.measure.window import Windows
from fabench.names import Regime

GEMM_N = {"cuda": {"fp32": 4096}, "cpu": {}}
"""Sizes other than the usual ones: fp32 GEMMs run 15 to 50 times slower than 16-bit ones."""
USUAL_N = {"cuda": 8192, "cpu": 512}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
COPY_SHARE = 0.05
"""A small card copies at most this share of its free memory."""
SAMPLES = 10
NULL_LOOPS = 64
"""Empty kernels a span: one alone would be shorter than the timer's step."""
SUSTAINED_S = 1.0
SPIN_NS, NULL_SPIN_NS = 500e3, 2e6


@dataclass(frozen=True)
class CanaryReading:
    """One reading of all canaries."""

    gemm_flops: dict[str, float]
    """FLOP/s of the GEMM, by dtype."""
    copy_bandwidth: float
    """Bytes read plus bytes written, a second."""
    null_ns: float
    """Time of an empty launch among many."""
    regime: Regime

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def measure_canary(engine: Engine, dtypes: Sequence[str], regime: Regime) -> CanaryReading:
    """Time the canaries as `regime` times rows: in windows of a cold card, or (sustained) after a second of the same.

    On a CUDA device GEMMs are 8192³ (4096³ in fp32) and the copy is 1 GiB; on a CPU 512³ and 64 MiB.
    """
    kind = engine.device_type
    rules = RULES["burst" if regime == "graph" else regime]
    probe = Probe(engine, rules)
    with quiet_gc():
        null_ns = probe.launch_floor(engine.null())
        gemm_flops = {}
        for dtype in dict.fromkeys(dtypes):
            n = GEMM_N[kind].get(dtype, USUAL_N[kind])
            gemm_flops[dtype] = 2 * n**3 / probe.time(engine.gemm(dtype, n)) * 1e9
        nbytes = max(1, min(COPY_BYTES[kind], int(engine.free_bytes() * COPY_SHARE)))
        bandwidth = 2 * nbytes / probe.time(engine.copy(nbytes)) * 1e9
    return CanaryReading(gemm_flops, bandwidth, null_ns, regime)


class Probe:
    """Times one fixed launch by the rules of a regime."""

    def __init__(self, engine: Engine, rules: Rules) -> None:
        self.engine, self.rules = engine, rules
        self.pace, self.windows = Pace(engine, rules), Windows(engine)

    def launch_floor(self, null: Callable[[], Any]) -> float:
        """Median nanoseconds of one empty launch among many, all queued before the first may start."""

        def span(_: int) -> None:
            for _ in range(NULL_LOOPS):
                null()

        spin_ns = NULL_SPIN_NS if self.engine.asynchronous else 0.0
        return median(self.windows.run(span, SAMPLES, NULL_LOOPS, flush=False, spin_ns=spin_ns).samples_ns)

    def time(self, launch: Callable[[], Any]) -> float:
        """Median nanoseconds of one launch, timed as the regime times rows."""

        def span(_: int) -> None:
            launch()

        spin_ns = SPIN_NS if self.engine.asynchronous else 0.0
        once = self.windows.run(span, 1, 1, flush=False, spin_ns=spin_ns).samples_ns[0]
        if self.rules.settle_s:
            spans = max(SAMPLES, int(SUSTAINED_S * 1e9 / once))
            return median(self.windows.run(span, spans, 1, flush=False, spin_ns=0.0).samples_ns[-SAMPLES:])
        samples: list[float] = []
        while len(samples) < SAMPLES:
            opening = self.pace.open()
            room = int((self.rules.window_ns - opening.gate_ns) / (once + spin_ns))
            count = max(1, min(SAMPLES - len(samples), room))
            window = self.windows.run(span, count, 1, flush=False, spin_ns=spin_ns)
            samples += window.samples_ns
            self.pace.close(window.work_ns + opening.gate_work_ns)
        return median(samples)
