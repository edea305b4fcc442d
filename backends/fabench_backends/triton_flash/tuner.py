"""Which declared configuration to launch: the first, or for large problems the fastest of the list, timed once.

Triton's own autotune decorator is not used: the descriptors' tile shapes depend on the configuration, nothing may be
timed while a CUDA graph is captured, and small problems are not worth the compilations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from fabench_backends.triton_flash.configs import Config, Kernel, candidates
from fabench_backends.triton_flash.interpreter import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable

TUNED_WORK = 2**36
"""batch·heads·Nq·Nk·(d + dv) from which on the candidates are timed: about 0.3 ms of forward on an H200."""


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
    config = _chosen[memory] = min(declared, key=lambda c: _milliseconds(c, launch))
    return config, True


def _milliseconds(config: Config, launch: Callable[[Config], None]) -> float:
    """Median of a short back-to-back run; a configuration the device cannot launch takes forever."""
    try:
        return float(triton.testing.do_bench(lambda: launch(config), warmup=5, rep=25, return_mode="median"))
    except triton.runtime.errors.OutOfResources:
        return float("inf")
