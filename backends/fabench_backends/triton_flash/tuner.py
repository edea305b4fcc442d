"""Which declared configuration to launch: the first, or for large problems the fastest of the list, timed once.

Triton's own autotune decorator is not used: the descriptors' tile shapes depend on the configuration, nothing may be
timed while a CUDA graph is captured, and small problems are not worth the compilations.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from fabench_backends.triton_flash.configs import Config, Kernel, candidates
from fabench_backends.triton_flash.interpreter import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TUNED_WORK = 2**36
"""batch·heads·Nq·Nk·(d + dv) from which on the candidates are timed: about 0.3 ms of forward on an H200."""
ROUNDS, SPAN_MS, MARGIN = 6, 2.0, 0.02
"""Turns of each candidate (even, so that a steady drift weighs on all alike), the least length of one, and what another
than the first has to be faster by."""


class Key(NamedTuple):
    """What a choice is remembered by (all but `work`)."""

    kernel: Kernel
    device: torch.device
    dtype: torch.dtype
    width: int
    has_left: bool
    has_right: bool
    softcap: bool
    n_bits: int
    work: int


_chosen: dict[Key, Config] = {}
last: dict[Kernel, Config] = {}
"""The configuration each kernel was last launched in."""


def configs(key: Key) -> tuple[Config, ...]:
    """The declared configurations for the key's device; the interpreter takes those without the copy engine."""
    arch = 80
    if key.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(key.device)
        arch = 10 * major + minor
    return candidates(key.kernel, arch, key.width, key.dtype.itemsize)


def choose(key: Key, launch: Callable[[Config], None]) -> tuple[Config, bool]:
    """The configuration for `key`, and if it will stay: nothing is timed while a CUDA graph is captured.

    `launch` may be called many times: the kernels only overwrite their outputs.
    """
    declared = configs(key)
    memory = key._replace(work=0)
    if memory in _chosen:
        return _chosen[memory], True
    if len(declared) == 1 or key.work < TUNED_WORK or INTERPRETED:
        return declared[0], True
    if torch.cuda.is_current_stream_capturing():
        return declared[0], False
    config = _chosen[memory] = fastest(declared, launch)
    return config, True


def fastest(declared: Sequence[Config], launch: Callable[[Config], None]) -> Config:
    """The configuration with the least time, if that is by more than `MARGIN`; else the first, which is declared best.

    They take turns, A B, B A, ...: on a card at its power limit the clock falls while a large problem is timed, and
    whatever came last would look slow. One that the device cannot launch is passed over.
    """
    times: dict[Config, list[float]] = {}
    for config in declared:
        try:
            launch(config)
        except triton.runtime.errors.OutOfResources:
            continue
        times[config] = []
    order = list(times)
    for _ in range(ROUNDS):
        for config in order:
            times[config].append(milliseconds(lambda config=config: launch(config)))  # type: ignore[misc]
        order.reverse()
    if not times:
        return declared[0]
    first, best = next(iter(times)), min(times, key=lambda config: median(times[config]))
    return best if median(times[best]) < (1 - MARGIN) * median(times[first]) else first


def milliseconds(call: Callable[[], None]) -> float:
    """Milliseconds of one call: of as many, back to back, as take `SPAN_MS`."""
    calls = 1
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    while True:
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        elapsed = float(start.elapsed_time(end))
        if elapsed >= SPAN_MS or calls > 1:
            return elapsed / calls
        calls = 1 + int(SPAN_MS / max(elapsed, 1e-3))
