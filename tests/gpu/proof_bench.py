"""What the proof of the measuring rules runs: its rows, and ways to measure them."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends")]

from fabench import environment, registry  # noqa: E402
from fabench.backend import Backend  # noqa: E402
from fabench.case import Case  # noqa: E402
from fabench.device import Device  # noqa: E402
from fabench.inputs import make  # noqa: E402
from fabench.launches import Launches  # noqa: E402
from fabench.measure.burst import Burst  # noqa: E402
from fabench.measure.cuda_engine import sleep_cycles  # noqa: E402
from fabench.measure.engine import engine_for  # noqa: E402
from fabench.measure.method import method_for  # noqa: E402
from fabench.measure.rules import RULES, Rules  # noqa: E402
from fabench.measure.sampling import Candidate, Limits, Measurement, measure, quiet_gc  # noqa: E402
from fabench.measure.telemetry import Reader  # noqa: E402
from fabench.measure.track import Track  # noqa: E402
from fabench.measure.window import Windows  # noqa: E402

CLOCK_READINGS, CLOCK_CYCLES = 7, 1_000_000
FIXED_N = Limits(half_width=1.0)
"""Stops at the first checkpoint, 30 samples: repeats of equal n."""


@dataclass(frozen=True)
class Row:
    """One (case, backend) of the proof."""

    backend: str
    N: int
    batch: int
    d: int = 128
    causal: bool = False
    heads: int = 16

    @property
    def case(self) -> Case:
        return Case(batch=self.batch, heads=self.heads, Nq=self.N, Nk=self.N, d=self.d, causal=self.causal)

    @property
    def name(self) -> str:
        return f"{self.backend} N={self.N} d={self.d} {'causal' if self.causal else 'full'} batch={self.batch}"


AA = [Row(b, N, 16384 // N) for N in (1024, 2048, 4096, 8192) for b in ("sdpa-cudnn", "sdpa-flash")]
MORE = [
    Row("sdpa-flash", 4096, 4, d=64, causal=True),
    Row("sdpa-cudnn", 8192, 2, causal=True),
    Row("sdpa-efficient", 4096, 4),
    Row("sdpa-flash", 16384, 1, d=64, causal=True),
]
SPIN = [
    Row(b, 1024, 4, causal=c)
    for c in (False, True)
    for b in ("sdpa-cudnn", "sdpa-flash", "sdpa-efficient", "triton", "flash-attn", "flash-attn-3")
]
IDLE = [
    Row("sdpa-cudnn", 4096, 4),
    Row("sdpa-flash", 4096, 4),
    Row("sdpa-cudnn", 8192, 2),
    Row("sdpa-flash", 16384, 1, d=64, causal=True),
    Row("sdpa-cudnn", 1024, 4),
]
SUSTAINED = [Row("sdpa-cudnn", 4096, 4), Row("sdpa-flash", 4096, 4)]
DRY = [Row("naive", 128, 1, d=32, heads=2), Row("online", 128, 1, d=32, heads=2)]
"""What --dry runs, on a CPU: the script, not the device, is on trial."""


class Proof:
    """Holds the device, its engine, and what was prepared."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device: Device = environment.resolve("cpu" if dry else "cuda")
        self.engine: Any = engine_for(self.device)
        self.backends: dict[str, Backend] = registry.shipped()
        self.burst: Rules = RULES["cpu" if dry else "burst"]
        self._launchers: dict[str, tuple[Callable[[int], Any], int]] = {}
        self.nvml = None if dry else Reader.open(self.device.index)

    def rows(self, wanted: Sequence[Row]) -> list[Row]:
        """Those that can run here."""
        if self.dry:
            wanted = DRY
        return [row for row in wanted if row.backend in self.backends and self._takes(row)]

    def _takes(self, row: Row) -> bool:
        backend = self.backends[row.backend]
        return not backend.unavailable(self.device) and not backend.reasons(row.case, self.device)

    def launcher(self, row: Row) -> tuple[Callable[[int], Any], int]:
        """The row's launch and its rotation, prepared once."""
        if row.name not in self._launchers:
            launches = Launches(row.case, make(row.case, self.device.torch_name), self.engine)
            launches.open(row.name, self.backends[row.backend].prepare(row.case, self.device))
            launch = launches.launcher(row.name)
            launch(0)
            self.engine.synchronize()
            self._launchers[row.name] = (launch, launches.rotation)
        return self._launchers[row.name]

    def clock_after(self, row: Row) -> float | None:
        """The SM clock in MHz that the calls of a row leave behind: cycles of a spin right after three of them."""
        if self.dry:
            return None
        (launch, _), engine, found = self.launcher(row), self.engine, []
        for _ in range(CLOCK_READINGS):
            start, end = engine.event(), engine.event()
            engine.sleep(0.02)
            engine.spin(1e6)
            for _ in range(3):
                launch(0)
            engine.record(start)
            sleep_cycles(CLOCK_CYCLES)
            engine.record(end)
            engine.wait(end)
            found.append(CLOCK_CYCLES / engine.elapsed_ns(start, end) * 1e3)
        return round(median(found), 2)

    def candidates(self, rows: Sequence[Row]) -> list[Candidate]:
        return [Candidate(row.name, *self.launcher(row)) for row in rows]

    def measured(self, rows: Sequence[Row], regime: Any = "burst", limits: Limits = FIXED_N) -> dict[str, Measurement]:
        method = method_for(regime, self.device, "normal")
        return check(measure(self.candidates(rows), method, limits, self.engine, lambda *_: None))

    def with_rules(self, rows: Sequence[Row], rules: Rules, *, spin_last: bool = False) -> dict[str, Measurement]:
        """As `measured`, by rules that no regime has; `spin_last` spins after the flush and not before it."""
        tracks = [Track(candidate, self.engine, rules, random.Random(0)) for candidate in self.candidates(rows)]
        burst = Burst(tracks, rules, FIXED_N, self.engine, lambda *_: None)
        if spin_last:
            burst.windows = Windows(SpinLast(self.engine))  # type: ignore[arg-type]
        with quiet_gc():
            burst.run()
        return check({track.name: track.out for track in tracks})

    def captured(self, rows: Sequence[Row]) -> dict[str, Measurement]:
        """As `measured` in the graph regime, without the rows that cannot be captured."""
        method = method_for("graph", self.device, "normal")
        found = measure(self.candidates(rows), method, FIXED_N, self.engine, lambda *_: None)
        return check({name: out for name, out in found.items() if not out.unsupported})

    def sm_clock(self) -> float | None:
        return None if self.nvml is None else self.nvml.poll().sm_clock_mhz


class SpinLast:
    """An engine whose spin waits for the flush, and then follows it."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._ns = engine, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def spin(self, ns: float) -> None:
        self._ns = ns

    def flush(self) -> None:
        self._engine.flush()
        self._engine.spin(self._ns)


def check(found: dict[str, Measurement]) -> dict[str, Measurement]:
    """Raise on a row that was not measured: nothing here may fail quietly."""
    for name, out in found.items():
        if not out.samples_ns:
            raise RuntimeError(f"{name}: {out.error or out.unsupported}") from out.failure
    return found


def cv(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else 0.0


def medians_of(rows: Sequence[Row], repeats: int, once: Callable[[], dict[str, Measurement]]) -> Any:
    """Row name -> medians of `repeats` runs, and the flags seen."""
    medians: dict[str, list[float]] = {row.name: [] for row in rows}
    flags: dict[str, set[str]] = {row.name: set() for row in rows}
    for _ in range(repeats):
        for name, out in once().items():
            medians[name].append(median(out.samples_ns))
            flags[name] |= out.flags
    return medians, {name: sorted(seen) for name, seen in flags.items()}
