"""One kernel at its own speed, and slowed by 2, 3 and 5 % inside what is timed: sides for `fabench run --ab`.

What is added runs on the same stream right after the kernel: a spin of a share of the kernel's own time, which is
measured once for each shape when the shape is first seen, before anything is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

_known: dict[tuple[object, ...], float] = {}
"""Shape, dtype and mask -> seconds of one plain call."""
_cycles_a_second: dict[int, float] = {}


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def slower2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return _slowed(0.02, q, k, v, causal)


def slower3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return _slowed(0.03, q, k, v, causal)


def slower5(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    return _slowed(0.05, q, k, v, causal)


def slower20(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Enough to be seen on a busy CPU."""
    return _slowed(0.20, q, k, v, causal)


def _slowed(share: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    seconds = _plain_seconds(q, k, v, causal)
    out = plain(q, k, v, causal)
    if q.is_cuda:
        torch.cuda._sleep(round(share * seconds * _clock(q.device.index or 0)))
    else:
        end = time.perf_counter() + share * seconds
        while time.perf_counter() < end:
            pass
    return out


def _plain_seconds(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> float:
    key = (q.shape, k.shape, q.dtype, causal)
    if key not in _known:
        _known[key] = _timed(lambda: plain(q, k, v, causal), q.is_cuda)
    return _known[key]


def _clock(index: int) -> float:
    """Cycles of torch.cuda._sleep a second, measured: the spin then lasts what it should at the clock of the moment."""
    if index not in _cycles_a_second:
        cycles = 2_000_000
        _cycles_a_second[index] = cycles / _timed(lambda: torch.cuda._sleep(cycles), True)
    return _cycles_a_second[index]


def _timed(call: Callable[[], object], cuda: bool, repeats: int = 9) -> float:
    """Median seconds of single calls with a rest between them, as a burst has."""
    call()
    seconds = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize()
            time.sleep(0.02)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        else:
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
