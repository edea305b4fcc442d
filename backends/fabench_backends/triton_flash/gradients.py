"""What the two backward kernels share: P from the saved LSE, and dS (Dao 2023, arXiv 2307.08691, Algorithm 2).

The backward recomputes P tile by tile. It is two kernels, so that every sum has one owner: no atomics, and dQ, dK and
dV are bitwise the same on every run. `backward_dq.py` runs first, for it also writes delta.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fabench_backends.triton_flash.masks import visible
from fabench_backends.triton_flash.primitives import tanh_slope

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def exp2_lse(lse):
    """LSE in exp2 units; a row without keys (-inf) gets +inf, so that exp2(s - lse) is 0 and never NaN."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@triton.jit
def probabilities(
    s,
    lse,
    queries,
    keys,
    band,
    Nk,
    exp2_scale,
    MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
):
    """P of one tile from its scores and the saved LSE (exp2 units); `lse`, `queries`, `keys` broadcast to s."""
    exponent = s * exp2_scale - lse
    if MASKED:
        exponent = tl.where(visible(queries, keys, band, Nk, HAS_LEFT, HAS_RIGHT), exponent, float("-inf"))
    return tl.exp2(exponent)


@triton.jit
def derivative(p, dp, delta, raw, score_scale, SOFTCAP: tl.constexpr):
    """dS = P (dP - delta), times the slope of the cap if there is one: `raw` is q·k, before scale and cap."""
    ds = p * (dp - delta)
    if SOFTCAP:
        ds = ds * tanh_slope(raw * score_scale)
    return ds
