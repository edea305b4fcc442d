"""Memory of one call beyond its inputs, in a pass of its own: never while a call is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from fabench.case import Case
from fabench.cost import MemoryModel, extra_memory
from fabench.records import Memory

if TYPE_CHECKING:
    from fabench.backend import Prepared
    from fabench.inputs import Tensors
    from fabench.measure.engine import Engine

T = TypeVar("T")


class Meter(Protocol):
    """Watches what a piece of work allocates."""

    def watch(self, body: Callable[[], T]) -> tuple[T, int, int]:
        """body's result, the most bytes it held at once, and the bytes it still holds, both above the start.

        Never below 0: a body that frees what was there before it holds nothing of its own.
        """


class CudaMeter:
    """PyTorch's caching allocator: exact, but blind to memory that a library takes from the driver itself."""

    def watch(self, body: Callable[[], T]) -> tuple[T, int, int]:
        """See `Meter`. The peak is reset after what runs before has ended, so that it is this call's alone."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = body()
        torch.cuda.synchronize()
        peak, held = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
        return result, max(0, peak), max(0, held)


class CpuMeter:
    """torch.profiler's memory events: every allocation and release of PyTorch's CPU allocator."""

    def watch(self, body: Callable[[], T]) -> tuple[T, int, int]:
        """See `Meter`. Raises RuntimeError if the profiler reports no memory events."""
        # What torch.profiler wraps: without the wrapper, whose first use imports the compiler for seconds.
        with torch.autograd.profiler.profile(profile_memory=True, use_kineto=True, acc_events=True) as profiler:
            first_event = torch.empty(1, device="cpu")  # seen, or nothing is
            result = body()
        del first_event
        recorded = profiler.kineto_results.events()
        steps = [(e.start_ns(), e.nbytes()) for e in recorded if e.name() == "[memory]"]
        if not steps:
            raise RuntimeError("torch.profiler reported no memory events")
        held = peak = 0
        for _, step in sorted(steps, key=lambda pair: pair[0])[1:]:
            held += step
            peak = max(peak, held)
        return result, peak, max(0, held)


def measure_memory(
    case: Case,
    prepared: Prepared,
    tensors: Tensors,
    engine: Engine,
    *,
    model: MemoryModel | None = None,
    outside_before: int | None = None,
) -> Memory:
    """Peak bytes beyond the inputs of one call of the case's direction, split into outputs, saved and workspace.

    For a backward, `saved` is all that its forward left behind beyond the inputs, O included, and it counts towards the
    peak; for forward and backward together O is an output. `model` adds the prediction to stand beside it;
    `outside_before`, a reading of `outside_allocator` from before the backend was prepared, lets the growth of memory
    that the allocator does not see be told. Where nothing can be measured all is null and `note` says why.
    """
    meter: Meter = CudaMeter() if engine.device_type == "cuda" else CpuMeter()
    outside = outside_allocator(engine) if outside_before is None else outside_before
    predicted = None if model is None else extra_memory(case, model)
    try:
        outputs, saved, peak = _watch(meter, case, prepared, tensors)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if engine.device_type == "cuda":
            raise
        return Memory(predicted_bytes=predicted, note=f"not measured: {error}")
    now = outside_allocator(engine)
    return Memory(
        peak_bytes=peak,
        outputs_bytes=outputs,
        workspace_bytes=max(0, peak - outputs - saved),
        saved_bytes=saved if case.has_backward else None,
        device_delta_bytes=None if now is None or outside is None else max(0, now - outside),
        predicted_bytes=predicted,
    )


def _watch(meter: Meter, case: Case, prepared: Prepared, tensors: Tensors) -> tuple[int, int, int]:
    """Bytes of the outputs, bytes saved for the backward, and the peak, of the case's direction."""
    q, k, v = tensors.q, tensors.k, tensors.v

    def forward() -> Any:
        with nullcontext() if case.has_backward else torch.no_grad():
            leaves = [t.detach().requires_grad_(case.has_backward) for t in (q, k, v)]
            return leaves, prepared.call(*leaves)

    warm, output = forward()  # what is allocated once and kept (cuBLAS's workspace, say) is not this call's
    if case.has_backward:
        torch.autograd.grad(first(output), warm, tensors.dO)
    del warm, output
    (leaves, O), peak, held = meter.watch(forward)
    own = storage_bytes([O], besides=(q, k, v))
    if not case.has_backward:
        return own, 0, peak
    gradients, most, _ = meter.watch(lambda: torch.autograd.grad(first(O), leaves, tensors.dO, retain_graph=True))
    results = storage_bytes(gradients, besides=(q, k, v))
    if case.direction == "backward":
        return results, held, held + most
    return own + results, max(0, held - own), max(peak, held + most)


def first(output: Any) -> torch.Tensor:
    """O, of a call that returns O or (O, LSE)."""
    tensor: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def storage_bytes(outputs: Iterable[Any], besides: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the distinct storages behind some outputs, those of `besides` left out."""
    known = {t.untyped_storage().data_ptr() for t in besides}
    sizes: dict[int, int] = {}
    for output in outputs:
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(size for pointer, size in sizes.items() if pointer not in known)


def outside_allocator(engine: Engine) -> int | None:
    """Device memory in use that is not the allocator's: contexts, modules, a library's own; None on a CPU."""
    if engine.device_type != "cuda":
        return None
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
