"""The parts of the proof: each measures one thing and returns what goes into the file under its name."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from proof_bench import AA, IDLE, MORE, SPIN, SUSTAINED, Proof, Row, cv, medians_of

from fabench.case import Case
from fabench.cost import cost
from fabench.inputs import make
from fabench.measure.canary import measure_canary
from fabench.measure.memory import measure_memory
from fabench.measure.pace import Pace
from fabench.measure.rules import GATE_TOLERANCE, Rules
from fabench.measure.sampling import Measurement

REPEATS, ROUNDS, CONTINUOUS_REPEATS, HOT_REPEATS, IDLE_REPEATS = 6, 5, 5, 3, 4


def part_aa(proof: Proof) -> Any:
    """The same rows measured again and again: in this process, continuously, and at full product speed."""
    rows = proof.rows(AA)
    began = time.perf_counter()
    outs: list[dict[str, Measurement]] = []

    def once() -> dict[str, Measurement]:
        outs.append(proof.measured(rows))
        return outs[-1]

    medians, flags = medians_of(rows, REPEATS, once)
    wall_s = time.perf_counter() - began
    spent = sum(out.device_s + out.idle_s for found in outs for out in found.values())
    table = []
    for row in rows:
        continuous, clocks = continuously(proof, row)
        table.append(
            {
                "row": row.name,
                "burst_ns": medians[row.name],
                "burst_cv": cv(medians[row.name]),
                "continuous_ns": continuous,
                "continuous_cv": cv(continuous),
                "continuous_sm_mhz": clocks,
                "flags": flags[row.name],
                "K": outs[-1][row.name].K,
                "t_host_ns": outs[-1][row.name].t_host_ns,
                "tflops": cost(row.case).flops / median(medians[row.name]) / 1e3,
            }
        )
    overhead_ms = (wall_s - spent) / (len(rows) * REPEATS) * 1e3
    return {"rows": table, "repeats": REPEATS, "n": 30, "overhead_ms_per_row": overhead_ms, "wall_s": wall_s}


def continuously(proof: Proof, row: Row, seconds: float = 0.25) -> tuple[list[float], list[float | None]]:
    """Medians of back-to-back timing as common tools do it: flush, start event, call, end event, no idle time."""
    engine, (launch, rotation) = proof.engine, proof.launcher(row)
    found, clocks = [], []
    for _ in range(CONTINUOUS_REPEATS):
        t = 1e6
        for warm in (True, False):
            count = 5 if warm else max(10, min(2000, int(seconds * 1e9 / t)))
            pairs = [(engine.event(), engine.event()) for _ in range(count)]
            for i, (start, end) in enumerate(pairs):
                engine.flush()
                engine.record(start)
                launch(i % rotation)
                engine.record(end)
            clock = None if warm else proof.sm_clock()
            engine.synchronize()
            t = median([engine.elapsed_ns(start, end) for start, end in pairs])
        found.append(t)
        clocks.append(clock)
    return found, clocks


def part_rounds(rounds: Sequence[subprocess.Popen[str]]) -> Any:
    """The same rows in fresh processes, which waited with torch imported and no context."""
    medians: dict[str, list[float]] = {}
    clocks: dict[str, list[Any]] = {}
    for process in rounds:
        out, _ = process.communicate("go\n", timeout=120)
        for name, seen in json.loads(out.splitlines()[-1]).items():
            medians.setdefault(name, []).append(seen["ns"])
            clocks.setdefault(name, []).append(seen["MHz"])
    rows = medians.items()
    return {"rows": [{"row": name, "ns": found, "cv": cv(found), "MHz": clocks[name]} for name, found in rows]}


def part_hot(proof: Proof) -> Any:
    """A burst that follows a second of hot GEMMs, with the canary at each window's door and without it."""
    rows = proof.rows(IDLE[:2])
    gemm = proof.engine.gemm("fp32" if proof.dry else "bf16", 64 if proof.dry else 8192)
    found = {}
    for name, rules in {"gated": proof.burst, "ungated": replace(proof.burst, gated=False)}.items():

        def once(rules: Rules = rules) -> dict[str, Measurement]:
            until = time.perf_counter() + (0.01 if proof.dry else 1.0)
            while time.perf_counter() < until:
                for _ in range(10):
                    gemm()
                proof.engine.synchronize()
            return proof.with_rules(rows, rules)

        medians, flags = medians_of(rows, HOT_REPEATS, once)
        found[name] = [{"row": row.name, "ns": medians[row.name], "flags": flags[row.name]} for row in rows]
        proof.engine.sleep(0 if proof.dry else 1.5)
    return found


def part_gate(proof: Proof) -> Any:
    """Readings of the canary that opens windows, on a card at rest: its own noise."""
    if proof.engine.gate_dtype is None:
        return None
    pace = Pace(proof.engine, proof.burst)
    if proof.engine.cold.gate_ns is None:
        pace.calibrate()
    readings = []
    for _ in range(25):
        proof.engine.sleep(0.09)
        readings.append(pace.time(proof.engine.cold.gate))
    above = sum(reading > (1 + GATE_TOLERANCE) * median(readings) for reading in readings)
    return {"ns": readings, "cv": cv(readings), "above_tolerance": above}


def part_spin(proof: Proof) -> Any:
    """Short rows with the spin, without it, with it after the flush, and replayed from a graph."""
    rows = proof.rows(SPIN)
    with_spin = proof.measured(rows)
    without = proof.with_rules(rows, replace(proof.burst, spin=False))
    last = proof.with_rules(rows, proof.burst, spin_last=True)
    graph = None if proof.dry else proof.captured(rows)
    table = []
    for row in rows:
        flops = cost(row.case).flops
        ns = {
            "with": with_spin[row.name],
            "without": without[row.name],
            "last": last[row.name],
            "graph": (graph or {}).get(row.name),
        }
        table.append(
            {
                "row": row.name,
                "t_host_ns": with_spin[row.name].t_host_ns,
                "flags": sorted(with_spin[row.name].flags),
                **{f"{k}_ns": None if m is None else median(m.samples_ns) for k, m in ns.items()},
                **{f"{k}_tflops": None if m is None else flops / median(m.samples_ns) / 1e3 for k, m in ns.items()},
            }
        )
    return table


def part_agreement(proof: Proof) -> Any:
    """Burst medians against torch.profiler's spans and triton's do_bench, which rest as long or longer."""
    rows = proof.rows([*AA, *MORE])
    ours = proof.measured(rows)
    table = []
    for row in rows:
        t = median(ours[row.name].samples_ns)
        entry: dict[str, Any] = {"row": row.name, "burst_ns": t}
        if not proof.dry:
            entry["profiler_ns"] = profiled(proof, row, t)
            entry["do_bench_ns"] = do_benched(proof, row, t)
            entry["profiler_ratio"] = t / entry["profiler_ns"]
            entry["do_bench_ratio"] = t / entry["do_bench_ns"]
        table.append(entry)
    return table


def profiled(proof: Proof, row: Row, t_ns: float) -> float:
    """Median span from a call's first kernel start to its last kernel end, in windows of at most 10 ms."""
    from torch.profiler import ProfilerActivity, profile

    engine, (launch, rotation) = proof.engine, proof.launcher(row)
    count, spans = max(1, min(10, int(9e6 / (t_ns + 2e5)))), list[float]()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(max(2, 12 // count)):
            for i in range(count):
                engine.flush()
                engine.spin(1.5e5)
                launch(i % rotation)
            engine.spin(1e3)
            engine.synchronize()
            engine.sleep(0.1)
    events = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
        for e in profiler.profiler.kineto_results.events()
        if e.device_type().name == "CUDA" and e.duration_ns() > 0
    )
    start: int | None = None
    end: int | None = None
    for began, ended, name in events:
        if "spin_kernel" in name or is_flush(name):
            if start is not None and end is not None:
                spans.append(end - start)
            start = end = None
        else:
            start, end = began if start is None else start, ended
    return median(spans)


def is_flush(name: str) -> bool:
    """The L2 flush is a fill of bytes."""
    return name.startswith("Memset") or "FillFunctor<unsigned char>" in name


def do_benched(proof: Proof, row: Row, t_ns: float) -> float:
    """Median of triton.testing.do_bench in bursts of a few calls, with nine times as much rest after each."""
    from triton.testing import do_bench

    launch, rotation = proof.launcher(row)
    index, found = [0], list[float]()

    def call() -> Any:
        index[0] = (index[0] + 1) % rotation
        return launch(index[0])

    for _ in range(5):
        began = time.perf_counter()
        found += do_bench(call, warmup=1, rep=4, return_mode="all")
        proof.engine.sleep(max(0.09, 9 * (time.perf_counter() - began)))
    return median(found) * 1e6


def part_sustained(proof: Proof) -> Any:
    """Two rows sustained, with the clock they settle at."""
    if proof.dry:
        return None
    table = []
    for row in proof.rows(SUSTAINED):
        out = proof.measured([row], "sustained")[row.name]
        launch, rotation = proof.launcher(row)
        for i in range(200):
            launch(i % rotation)
        clock = proof.sm_clock()
        proof.engine.synchronize()
        table.append({"row": row.name, "ns": median(out.samples_ns), "sm_mhz": clock, "flags": sorted(out.flags)})
    return table


def part_memory(proof: Proof) -> Any:
    """Extra memory at fixed batch·heads as N doubles."""
    table = []
    sizes = (128, 256, 512) if proof.dry else (1024, 2048, 4096, 8192, 16384)
    for direction in ("forward", "backward"):
        for name, model in (("naive", "standard"), ("online" if proof.dry else "sdpa-flash", "flash")):
            for N in sizes:
                case = Case(batch=1, heads=16, Nq=N, Nk=N, d=64, direction=direction)  # type: ignore[arg-type]
                prepared = proof.backends[name].prepare(case, proof.device)
                tensors = make(case, proof.device.torch_name)
                memory = measure_memory(case, prepared, tensors, proof.engine, model=model)  # type: ignore[arg-type]
                table.append({"backend": name, "direction": direction, "N": N, **memory.model_dump(exclude_none=True)})
                del tensors
    return table


IDLE_SETTINGS: tuple[tuple[float, bool, float], ...] = (
    (0.05, False, 0.1),
    (0.1, False, 0.1),
    (0.2, False, 0.1),
    (0.3, False, 0.1),
    (0.5, False, 0.1),
    (0.1, True, 0.1),
    (0.2, True, 0.1),
    (0.2, True, 0.02),
    (0.3, True, 0.02),
    (0.5, True, 0.02),
)
"""Duty, whether the canary opens windows, and how long it waits before it asks again."""


def part_idle(proof: Proof) -> Any:
    """Repeats under several duty cycles, without the canary at the windows' door and with it; what each costs."""
    rows, table = proof.rows(IDLE), []
    for duty, gated, retry_s in IDLE_SETTINGS[:1] if proof.dry else IDLE_SETTINGS:
        rules = replace(proof.burst, duty=duty, gated=gated and not proof.dry, gate_retry_s=retry_s)
        proof.engine.sleep(0 if proof.dry else 1.5)
        outs: list[dict[str, Measurement]] = []

        def once(rules: Rules = rules, outs: list[dict[str, Measurement]] = outs) -> dict[str, Measurement]:
            outs.append(proof.with_rules(rows, rules))
            return outs[-1]

        began = time.perf_counter()
        medians, flags = medians_of(rows, IDLE_REPEATS, once)
        table.append(
            {
                "duty": duty,
                "gated": gated,
                "retry_s": retry_s,
                "row_s": (time.perf_counter() - began) / (IDLE_REPEATS * len(rows)),
                "device_s": sum(out.device_s for found in outs for out in found.values()),
                "idle_s": sum(out.idle_s for found in outs for out in found.values()),
                "ns": medians,
                "cv": {name: cv(found) for name, found in medians.items()},
                "flags": flags,
            }
        )
    return table


def part_canary(proof: Proof) -> Any:
    """The canaries of a run, in both regimes."""
    if proof.dry:
        return [measure_canary(proof.engine, ["fp32"], "cpu").to_json()]
    return [measure_canary(proof.engine, ["bf16", "fp16"], regime).to_json() for regime in ("burst", "sustained")]  # type: ignore[arg-type]
