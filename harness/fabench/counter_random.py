"""Random numbers that are the same bits on a CPU and on a GPU: a hash of the element's index, in integers only.

A library generator differs between devices and versions. Here element i of a stream is a 64-bit mix of i and the
stream's key (the finaliser of SplitMix64: Steele, Lea and Flood 2014, OOPSLA, §4), so it depends on nothing else and a
GPU fills gigabytes in milliseconds. Normal values come from a table of quantiles by two 16-bit indices, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
QUANTILES = 1 << 16

Bits = Callable[[int], torch.Tensor]
"""Stream number -> 63 random bits an element, int64, of the elements asked for."""


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch takes."""
    value &= MASK64
    return value - (1 << 64) if value >> 63 else value


def mix(value: int) -> int:
    """SplitMix64's finaliser on a Python int."""
    value &= MASK64
    value = (value ^ (value >> 30)) * MIX_1 & MASK64
    value = (value ^ (value >> 27)) * MIX_2 & MASK64
    return value ^ (value >> 31)


def random_bits(start: int, stop: int, key: int, device: str | torch.device) -> torch.Tensor:
    """63 random bits for each element index in [start, stop), as non-negative int64."""
    x = torch.arange(start, stop, dtype=torch.int64, device=device)
    x.mul_(signed(GOLDEN)).add_(signed(mix(key)))
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        # torch shifts arithmetically: the mask drops the copies of the sign bit.
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(signed(factor))
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1)).bitwise_and_((1 << 63) - 1)


@cache
def quantile_table(device: torch.device) -> torch.Tensor:
    """65536 normal quantiles, fp32, divided by sqrt(2) so that the sum of two independent ones is N(0, 1).

    They are multiples of 2^-20 below 4, so that a different maths library rounds to the same table and a sum is exact.
    """
    p = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    table = torch.special.ndtri(p) * 0.5**0.5
    return (torch.round(table * 2.0**20) * 2.0**-20).to(device=device, dtype=torch.float32)


def normal(bits: torch.Tensor) -> torch.Tensor:
    """N(0, 1) in fp32 from the low 32 bits: |x| <= 6.1, variance 1 within 1e-4."""
    table = quantile_table(bits.device)
    return table[bits & 0xFFFF] + table[(bits >> 16) & 0xFFFF]


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """[0, 1) in fp32 from bits 32 to 55, exactly."""
    return ((bits >> 32) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def fill(out: torch.Tensor, values: Callable[[Bits], torch.Tensor], key: int) -> torch.Tensor:
    """Fill the contiguous `out` with `values(bits)`, a block at a time so that the int64 scratch stays small."""
    flat = out.view(-1)
    block = 1 << 24 if out.is_cuda else 1 << 19
    for start in range(0, flat.numel(), block):
        stop = min(start + block, flat.numel())

        def bits(stream: int, start: int = start, stop: int = stop) -> torch.Tensor:
            return random_bits(start, stop, mix(key + GOLDEN * (stream + 1)), out.device)

        flat[start:stop] = values(bits).to(out.dtype)
    return out
