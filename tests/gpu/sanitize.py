"""The in-repo kernels under compute-sanitizer: `python tests/gpu/sanitize.py --seconds 240`.

memcheck, racecheck, initcheck and synccheck on small shapes that take every way through cuda-v1, cuda-v2 (also
deterministic, and with split keys) and triton, forward and backward. One line for each tool and backend: clean, how
many errors with the first of them, or why it did not run. Exits with 1 unless all that ran are clean and none is left.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BACKENDS = ("cuda-v1", "cuda-v2", "triton")
ERRORS = 86
"""compute-sanitizer's exit code where it found something, so that it is not taken for the program's own."""
OPTIONS = {"memcheck": ["--leak-check", "no", "--report-api-errors", "no"]}
"""CUDA calls that fail are no finding: libraries ask the driver for entry points that it may not have."""
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


@dataclass(frozen=True)
class Finding:
    """What one tool said of one backend."""

    tool: str
    backend: str
    clean: bool
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.tool:9} {self.backend:8} {self.text} ({self.seconds:.0f} s)"


def read(tool: str, backend: str, code: int, output: str, seconds: float) -> Finding:
    """The finding in what compute-sanitizer printed: clean only if the launches ended and the summary says 0."""
    counts = [int(a or b) for a, b in SUMMARY.findall(output)]
    lines = [line.lstrip("= ").strip() for line in output.splitlines() if line.startswith("=========")]
    first = next((x for x in lines if x and not x.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))), "")
    if counts and sum(counts):
        return Finding(tool, backend, False, f"{sum(counts)} errors, first: {first}", seconds)
    if code or not counts or f"launched {backend}" not in output:
        said = " | ".join(x.strip() for x in output.splitlines() if x.strip("= \n"))[-300:] or "no output"
        return Finding(tool, backend, False, f"did not run to its end (exit code {code}): {said}", seconds)
    return Finding(tool, backend, True, "clean", seconds)


def command(sanitizer: str, tool: str, backend: str, device: str) -> list[str]:
    """One tool over one backend's launches."""
    own = [sys.executable, str(Path(__file__).resolve()), "--launch", backend, "--device", device]
    return [sanitizer, "--tool", tool, "--error-exitcode", str(ERRORS), *OPTIONS.get(tool, ()), *own]


def sanitize(
    sanitizer: str, tools: Sequence[str], backends: Sequence[str], seconds: float, device: str
) -> list[Finding]:
    """Every tool over every backend, one after another; what would start after `seconds` is not clean."""
    began, found = time.perf_counter(), []
    for tool in tools:
        for backend in backends:
            left = seconds - (time.perf_counter() - began)
            if left <= 0:
                finding = Finding(tool, backend, False, "left out for want of time", 0.0)
            else:
                finding = one(sanitizer, tool, backend, left, device)
            print(finding, flush=True)
            found.append(finding)
    return found


def one(sanitizer: str, tool: str, backend: str, left: float, device: str) -> Finding:
    """One tool over one backend, killed after `left` seconds."""
    started = time.perf_counter()
    # The allocator would hide from initcheck what a kernel leaves unwritten, and from memcheck what it reads past.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    code, output = run(command(sanitizer, tool, backend, device), left, environment)
    seconds = time.perf_counter() - started
    if code is None:
        return Finding(tool, backend, False, "stopped for want of time", seconds)
    return read(tool, backend, code, output, seconds)


def run(arguments: Sequence[str], seconds: float, environment: dict[str, str]) -> tuple[int | None, str]:
    """(exit code, all it printed); None for a code if it took too long: it is then killed with all it started."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def launch(backend: str, device: str) -> None:
    """Small shapes through every kernel of a backend, forward and backward: tails, masks, groups, split keys."""
    sys.path[:0] = [str(ROOT / "harness"), str(ROOT / "backends")]
    from dataclasses import replace

    import torch

    from fabench import environment, registry
    from fabench.case import Case
    from fabench.launches import gradients_of

    # Autograd's own thread may still want the interpreter to drop what it ran when the program ends, and then aborts
    # it ("terminate called without an active exception"); what ran here has no such thread.
    torch.autograd.set_multithreading_enabled(False)

    where = environment.resolve(device)
    dtype = "bf16" if where.type == "cuda" else "fp32"
    base = Case(
        batch=1, heads=2, kv_heads=1, Nq=130, Nk=200, d=64, dtype=dtype, causal=True, direction="forward_backward"
    )
    cases = [base, *(replace(base, d=d, dv=d) for d in (40, 128, 256)), replace(base, causal=False, Nq=65)]
    cases += [replace(base, window=(20, 5), causal=False), replace(base, softcap=5.0), replace(base, Nq=300, Nk=100)]
    cases += [replace(base, Nq=1, Nk=2048, causal=False, direction="forward"), replace(base, Nk=1)]
    names = [backend, f"{backend}-deterministic"] if backend == "cuda-v2" else [backend]
    taken = 0
    for name in names:
        found = registry.shipped()[name]
        for case in cases:
            if not found.reasons(case, where):
                prepared, tensors = (
                    found.prepare(case, where, lse=case.direction == "forward"),
                    inputs(case, where.torch_name),
                )
                if case.has_backward:
                    gradients_of(prepared, tensors, case)
                else:
                    prepared.call(tensors.q, tensors.k, tensors.v)
                taken += 1
    if where.type == "cuda":
        torch.cuda.synchronize()
    print(f"launched {backend}: {taken} cases")


def inputs(case: object, device: str) -> object:
    """Made on the CPU and copied, so that the sanitizer looks at the kernels and not at a random generator."""
    from fabench.inputs import make

    tensors = make(case, "cpu")  # type: ignore[arg-type]
    return type(tensors)(*(None if t is None else t.to(device) for t in (tensors.q, tensors.k, tensors.v, tensors.dO)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="for all tools and backends together")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    parser.add_argument(
        "--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--launch", metavar="BACKEND", help="what runs under the sanitizer: one backend's launches")
    options = parser.parse_args(argv)
    if options.launch:
        launch(options.launch, options.device)
        return 0
    if not Path(options.sanitizer).exists():
        print(f"'compute-sanitizer' must be installed (it comes with the CUDA toolkit), got no '{options.sanitizer}'")
        return 2
    began = time.perf_counter()
    for backend in options.backends:  # compiled before, and not under the sanitizer, which slows that down too
        own = [sys.executable, str(Path(__file__).resolve()), "--launch", backend, "--device", options.device]
        code, output = run(own, options.seconds, dict(os.environ))
        if code != 0:
            print(f"{backend} does not run without the sanitizer: {(output.strip().splitlines() or ['no output'])[-1]}")
    left = options.seconds - (time.perf_counter() - began)
    found = sanitize(options.sanitizer, options.tools, options.backends, left, options.device)
    clean = sum(finding.clean for finding in found)
    print(f"{clean} of {len(found)} clean")
    return 0 if clean == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
