"""What a call after some rest finds of the device, by what holds it before the call; writes one JSON file.

`python tests/gpu/wake_proof.py results/nvidia-h200/wake_proof.json --seconds 60` starts fresh processes, one after
another. Each times a row in turns under several conditions, sample by sample, from its first call on: spins short and
long, on one SM or on all, after other work, without a flush, with more rest. What a condition decides differs between
conditions at the same time; what time decides, between early and late samples of one; what neither does, the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

ROW = {"backend": "sdpa-flash", "N": 4096, "batch": 4}
PROCESS_S = 9.0
REST_S = 0.02


def conditions(engine: Any) -> dict[str, tuple[Callable[[], object], bool, float]]:
    """Name -> (how the device is held before a call, whether L2 is flushed, seconds of rest)."""
    import torch

    everywhere = torch.ones(1 << 22, device="cuda")  # element-wise work that keeps every SM awake

    def all_sms() -> None:
        for _ in range(40):
            everywhere.mul_(1.0)

    multiply = engine.gemm("bf16", 4096)

    def after_products() -> None:
        for _ in range(5):
            multiply()

    return {
        "spin 0.3 ms": (lambda: engine.spin(3e5), True, REST_S),
        "spin 2 ms": (lambda: engine.spin(2e6), True, REST_S),
        "all SMs": (all_sms, True, REST_S),
        "after GEMMs": (after_products, True, REST_S),
        "no flush": (lambda: engine.spin(3e5), False, REST_S),
        "rest 0.1 s": (lambda: engine.spin(3e5), True, 0.1),
    }


def one_process() -> None:
    """Print the samples of this process: [condition, seconds since its first call, us, SM MHz]."""
    import torch
    from proof_bench import Proof, Row

    proof = Proof(dry=not torch.cuda.is_available())
    engine = proof.engine
    (row,) = proof.rows([Row(**ROW)])[:1]
    launch, rotation = proof.launcher(row)
    ways, samples = conditions(engine) if not proof.dry else {}, list[Any]()
    ways = ways or {"plain": (lambda: None, False, 0.0)}
    start, end = engine.event(), engine.event()
    began, index = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < (PROCESS_S if not proof.dry else 0.2):
        for name, (hold, flushes, rest_s) in ways.items():
            time.sleep(rest_s)
            hold()
            if flushes:
                engine.flush()
            engine.record(start)
            launch(index % rotation)
            engine.record(end)
            engine.wait(end)
            index += 1
            clock = proof.sm_clock() if index % 20 == 0 else None
            samples.append([name, round(now, 3), round(engine.elapsed_ns(start, end) / 1e3, 2), clock])
    print(json.dumps(samples))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        one_process()
        return 0
    deadline, processes = time.monotonic() + arguments.seconds, list[Any]()
    while not processes or time.monotonic() + PROCESS_S + 8 < deadline:
        command = [sys.executable, __file__, "-", "--process"]
        processes.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
        arguments.out.write_text(json.dumps({"wake": {"row": ROW, "processes": processes}}) + "\n")
        for name in dict.fromkeys(sample[0] for sample in processes[-1]):
            times = [sample[2] for sample in processes[-1] if sample[0] == name]
            size = max(1, len(times) // 3)
            thirds = [sorted(times[i * size :][:size])[size // 2] for i in range(min(3, len(times)))]
            print(f"process {len(processes)} {name:12} medians of its thirds, us: {thirds}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
