"""The one mask rule, shared by forward and backward: a band of keys around the aligned diagonal, and the key tail.

Query i sees key j when j < Nk and i + offset - left <= j <= i + offset + right, with band = (offset, left, right). A
causal mask is right = 0; a side that is unlimited is compiled out (`HAS_LEFT`, `HAS_RIGHT`). Indices are int32: the
host keeps N below 2**30, and a side that hides nothing unlimited.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def visible(queries, keys, band, Nk, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """True where a query sees a key; `queries` and `keys` are index blocks that broadcast against each other."""
    offset, left, right = band
    mask = keys < Nk
    if HAS_RIGHT:
        mask = mask & (keys <= queries + (offset + right))
    if HAS_LEFT:
        mask = mask & (keys >= queries + (offset - left))
    return mask


@triton.jit
def key_tiles(first, last, band, Nk, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Key ranges for the queries first..last: (start, full_start, full_end, end); all but `end` are tile edges.

    Every query sees all keys of [full_start, full_end); the tiles of [start, full_start) and [full_end, end) need the
    mask. One loop visits those two ranges, see `around`.
    """
    offset, left, right = band
    start = 0
    full_start = 0
    end = Nk
    full_end = Nk // BLOCK_N * BLOCK_N
    if HAS_RIGHT:
        end = tl.minimum(Nk, tl.maximum(0, last + offset + right + 1))
        full_end = tl.minimum(full_end, tl.maximum(0, first + offset + right + 1) // BLOCK_N * BLOCK_N)
    if HAS_LEFT:
        start = tl.maximum(0, first + offset - left) // BLOCK_N * BLOCK_N
        full_start = tl.cdiv(tl.maximum(0, last + offset - left), BLOCK_N) * BLOCK_N
        # A band narrower than a tile has no full tile: all of it is then masked.
        full_end = tl.maximum(full_end, start)
        full_start = tl.minimum(full_start, full_end)
    return start, full_start, full_end, end


@triton.jit
def query_tiles(first, last, band, Nq, BLOCK_M: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Query ranges for the keys first..last: (start, full_start, full_end, end); all but the ends are tile edges.

    The query tail is in a masked tile, where its LSE is read as -inf and so its P is 0. The key tail needs no mask:
    rows of dK and dV beyond Nk are never stored, and nothing mixes the rows.
    """
    offset, left, right = band
    start = 0
    full_start = 0
    end = Nq
    full_end = Nq // BLOCK_M * BLOCK_M
    if HAS_RIGHT:
        start = tl.maximum(0, first - offset - right) // BLOCK_M * BLOCK_M
        full_start = tl.cdiv(tl.maximum(0, last - offset - right), BLOCK_M) * BLOCK_M
    if HAS_LEFT:
        end = tl.minimum(Nq, tl.maximum(0, last - offset + left + 1))
        full_end = tl.minimum(full_end, tl.maximum(0, first - offset + left + 1) // BLOCK_M * BLOCK_M)
    # A band narrower than a tile has no full tile: all of it is then masked.
    full_end = tl.maximum(full_end, start)
    full_start = tl.minimum(full_start, full_end)
    return start, full_start, full_end, end


@triton.jit
def around(position, full_start, full_end):
    """The index of a masked tile when `position` counts on from start as if the full tiles were cut out."""
    return tl.where(position < full_start, position, position + (full_end - full_start))
