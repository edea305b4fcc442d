"""Holds burst medians against two other timers on a GPU, torch.profiler and NVIDIA's cuda-bench: acceptance test T7.

`python tests/gpu/cross_check.py [OUT.json] --seconds 90` measures ten rows or more of 100 us and longer in the burst
regime, then the same calls by torch.profiler (CUPTI: from the first kernel's start to the last kernel's end) and by
cuda-bench (NVBench's Python package, `pip install cuda-bench[cu13]`), all of them cold in L2 and rested as long. It
prints a table, adds the run to OUT.json (results/<gpu>/cross-check.json unless named), and exits with 1 if a row
differs by more than 2 %, with 3 if fewer than ten rows were compared. Without cuda-bench it says so and compares with
the profiler alone. `--dry` tries the script on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from diff_seen import TIMERS, timers, worst_of
from proof_bench import AA, MORE, ROOT, Proof, Row
from proof_parts import profiled

from fabench.measure.rules import RULES

LONG_NS = 100e3
"""Rows shorter than this are not compared: there the cost of an event is seen."""
LIMIT = 0.02
LEAST_ROWS = 10
SAMPLES = 30
REST = 1 / RULES["burst"].duty - 1
"""Rest after a call, in times of its length: what the burst regime's duty asks for."""
ABSENT = "cuda-bench is not installed (pip install 'cuda-bench[cu13]'): compared with torch.profiler alone"


def benched(proof: Proof, rows: Sequence[tuple[Row, float]], folder: Path) -> dict[str, float | str]:
    """Row name -> cuda-bench's median ns of its cold samples, or why there is none; `rows` come with their burst ns.

    Each sample's timer is started by hand, after the rest: what it then does is to flush L2, hold the stream with a
    kernel until the call is queued, and record an event.
    """
    import cuda.bench as bench
    from cuda.bench.results import BenchmarkResult

    for index, (row, ns) in enumerate(rows):
        made = bench.register(_benchmark(proof, row, REST * ns / 1e9))
        made.set_name(f"row{index}").set_stopping_criterion("sample-count")
        made.set_criterion_param_int64("target-samples", SAMPLES).set_cold_warmup_runs(3)
    path = folder / "cuda-bench.json"
    device = proof.device.index or 0
    bench.run_all_benchmarks(["cross_check", "--devices", str(device), "--jsonbin", str(path), "--quiet"])
    found: dict[str, float | str] = {}
    result = BenchmarkResult.from_json(path)
    for index, (row, _) in enumerate(rows):
        state = result[f"row{index}"][0]
        if state.is_skipped or not state.samples:
            found[row.name] = state.skip_reason or "no samples"
        else:
            found[row.name] = median(list(state.samples)) * 1e9
    return found


def _benchmark(proof: Proof, row: Row, rest_s: float) -> Callable[[Any], None]:
    def benchmark(state: Any) -> None:
        launch, rotation = proof.launcher(row)
        calls = itertools.cycle(range(rotation))

        def timed(_: Any, timer: Any) -> None:
            proof.engine.sleep(rest_s)
            timer.start()
            launch(next(calls))
            timer.stop()

        state.set_min_samples(SAMPLES)
        state.set_timeout(20.0)
        state.set_blocking_kernel_timeout(5.0)
        with on_stream(proof, state.get_stream().addressof()):
            for _ in range(rotation):  # what is allocated, compiled or chosen at a first call is not held by a kernel
                launch(next(calls))
            proof.engine.synchronize()
            state.exec(timed, timer=True)

    return benchmark


def on_stream(proof: Proof, address: int) -> AbstractContextManager[Any]:
    """What makes NVBench's stream the current one."""
    if proof.dry:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(address, device=proof.device.torch_name))


def in_child(rows: Sequence[tuple[Row, float]], seconds: float) -> dict[str, float | str]:
    """`benched` in a process of its own: NVBench ends the process in which a call deadlocks."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch) / "asked.json", Path(scratch) / "answer.json"
        asked.write_text(json.dumps({row.name: ns for row, ns in rows}))
        command = [sys.executable, __file__, "--child", str(asked), str(answer)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            return {row.name: f"cuda-bench was not done in {seconds:.0f} s" for row, _ in rows}
        if done.returncode or not answer.exists():
            print(f"cuda-bench ended with {done.returncode}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
            return {row.name: f"cuda-bench ended with {done.returncode}" for row, _ in rows}
        found: dict[str, float | str] = json.loads(answer.read_text())
        return found


def child(asked: Path, answer: Path) -> None:
    """What the other process does."""
    wanted, proof = json.loads(asked.read_text()), Proof(dry=False)
    rows = [(row, wanted[row.name]) for row in proof.rows([*AA, *MORE]) if row.name in wanted]
    answer.write_text(json.dumps(benched(proof, rows, answer.parent)))


def installed() -> bool:
    """Whether cuda-bench can be imported."""
    try:
        return importlib.util.find_spec("cuda.bench") is not None
    except ModuleNotFoundError:
        return False


def check(proof: Proof, seconds: float) -> dict[str, Any]:
    """One run: every row by every timer. A timer that has no time left leaves its rows out."""
    deadline = time.monotonic() + seconds
    measured = proof.measured(proof.rows([*AA, *MORE]))
    rows = [(row, median(measured[row.name].samples_ns)) for row in proof.rows([*AA, *MORE])]
    rows = [(row, ns) for row, ns in rows if ns >= LONG_NS or proof.dry]
    notes: list[str] = []
    table = []
    for row, ns in rows:
        late = time.monotonic() > deadline - 0.4 * seconds
        spans = None if proof.dry or late else profiled(proof, row, ns)
        table.append({"row": row.name, "burst_ns": ns, "profiler_ns": spans, "cuda_bench_ns": None})
    if proof.dry or not installed():
        notes.append(ABSENT)
    else:
        found = in_child(rows, deadline - time.monotonic())
        for entry in table:
            value = found.get(str(entry["row"]), "not measured")
            if isinstance(value, str):
                notes.append(f"{entry['row']}: {value}")
            else:
                entry["cuda_bench_ns"] = value
    return {
        "device": proof.device.name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda_bench": version() if installed() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(seconds - (deadline - time.monotonic()), 1),
        "notes": notes,
        "rows": table,
    }


def version() -> str:
    from importlib.metadata import version as of

    return of("cuda-bench")


def verdict(run: dict[str, Any]) -> tuple[int, str]:
    """The exit code, and why."""
    compared = {timer: sum(row[f"{timer}_ns"] is not None for row in run["rows"]) for timer in TIMERS}
    worst = {timer: worst_of(run, timer) for timer in TIMERS if compared[timer]}
    text = ", ".join(f"{TIMERS[t]}: {compared[t]} rows, at most {w:.2%}" for t, w in worst.items()) or "no row"
    if any(w is not None and w > LIMIT for w in worst.values()):
        return 1, f"differs by more than {LIMIT:.0%}: {text}"
    if compared["profiler"] < LEAST_ROWS or (run["cuda_bench"] and compared["cuda_bench"] < LEAST_ROWS):
        return 3, f"too few rows were compared, {LEAST_ROWS} are asked for: {text}"
    return 0, f"agrees within {LIMIT:.0%}: {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--dry", action="store_true", help="try the script on a CPU")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return 0
    proof = Proof(arguments.dry)
    out = arguments.out or ROOT / "results" / proof.device.slug / "cross-check.json"
    runs = json.loads(out.read_text())["runs"] if out.exists() else []
    run = check(proof, arguments.seconds)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"runs": [*runs, run]}, indent=1) + "\n")
    code, why = verdict(run)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "cross-check.json").write_text(json.dumps({"runs": [run]}))
        print(timers(Path(scratch)))
    print(*run["notes"], why, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
