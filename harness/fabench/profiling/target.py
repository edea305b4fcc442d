"""The process that is profiled: prepares a backend, warms up, and makes one call of the case. Imports torch.

Run as `python -m fabench.profiling.target REQUEST`, REQUEST naming a JSON file; the answer is written beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fabench.case import Case
from fabench.device import Device
from fabench.errors import BackendError, FabenchError
from fabench.outcome import message_of
from fabench.profiling.kernel import Kernel, by_name

WARMUP = 3
CALLS = 1
"""Calls that are profiled: one, so that counters are those of a call."""


def main(arguments: list[str]) -> None:
    """Carry out the request and write {'kernels': [...]} or {'error': sentence} to its `answer` path."""
    request = json.loads(Path(arguments[0]).read_text())
    try:
        answer = _answer(request)
    except FabenchError as error:
        answer = {"error": str(error)}
    except Exception as error:
        said = " ".join(message_of(error).split())  # a compiler's error has many lines
        answer = {"error": f"'{request['backend']}' must run the case, got {type(error).__name__}: {said}"}
    Path(request["answer"]).write_text(json.dumps(answer))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from fabench.probe import load

    device = Device.from_json(request["device"])
    loaded, _ = load(request["backend_files"])
    if request["backend"] not in loaded:
        raise BackendError(f"unknown backend '{request['backend']}'")
    launch = _launch(Case.from_key(request["case"]), loaded[request["backend"]], device)
    for _ in range(WARMUP):
        launch()
    synchronize(device)
    if request["tool"] == "ncu":
        _marked(launch, device)
        return {"kernels": []}
    return {"kernels": [asdict(kernel) for kernel in _torch_kernels(launch, device)]}


def _launch(case: Case, backend: Any, device: Device) -> Callable[[], Any]:
    """One call of the case's direction; a backward's forward runs here, outside what is profiled."""
    import torch

    from fabench.inputs import make
    from fabench.launches import forward_with_graph, gradients_of

    tensors = make(case, device.torch_name)
    prepared = backend.prepare(case, device)
    if case.direction == "forward":
        return torch.no_grad()(lambda: prepared.call(tensors.q, tensors.k, tensors.v))
    if case.direction == "forward_backward":
        return lambda: gradients_of(prepared, tensors, case)
    leaves, O = forward_with_graph(prepared, tensors, case)
    return lambda: torch.autograd.grad(O, leaves, tensors.dO, retain_graph=True)


def _marked(launch: Callable[[], Any], device: Device) -> None:
    """The call between the marks that ncu waits for."""
    import torch

    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaProfilerStart()
    for _ in range(CALLS):
        launch()
    synchronize(device)
    runtime.cudaProfilerStop()


def _torch_kernels(launch: Callable[[], Any], device: Device) -> tuple[Kernel, ...]:
    """The call's kernels by torch's profiler; on a CPU the operators, by the time spent in themselves."""
    from torch.autograd.profiler import profile  # what torch.profiler wraps, without its warnings

    on_gpu = device.type == "cuda"
    with profile(use_cpu=not on_gpu, use_device="cuda" if on_gpu else None, use_kineto=True, acc_events=True) as seen:
        launch()
        synchronize(device)
    if not on_gpu:
        averages = [event for event in seen.key_averages() if event.self_cpu_time_total > 0]
        averages.sort(key=lambda event: -event.self_cpu_time_total)
        return tuple(Kernel(event.key, event.count, event.self_cpu_time_total * 1e3) for event in averages)
    events = [e for e in seen.kineto_results.events() if e.device_type().name == "CUDA" and not e.is_user_annotation()]
    return by_name(
        Kernel(event.name(), 1, float(event.duration_ns()))
        for event in sorted(events, key=lambda event: event.start_ns())
        if event.duration_ns() > 0
    )


def synchronize(device: Device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
