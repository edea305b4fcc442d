"""Tile loads and stores, and the score function: what the three kernels share.

A tensor is [batch, heads, N, D] with contiguous columns. Its `place` inside a kernel is (batch, head, head_start,
row_stride): the head it reads, and for the pointer path the element offset of that head and the row stride, both
int64. Strides reach the kernels in units of ALIGN elements (a power of two that divides them all, at most 16 bytes),
so that the compiler knows how wide a load may be, and are cast to int64 before the first multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

RUNTIME_INTS = ["heads", "heads_total", "side_by_side", "group", "Nq", "Nk", "offset", "left", "right"]
"""Arguments (beside the strides) that Triton must not compile a kernel a value for."""


@triton.jit
def head_and_tile(heads_total, side_by_side, tiles):
    """This program's head of `heads_total` and tile of `tiles`: `side_by_side` heads a round, heads fastest."""
    program = tl.program_id(0).to(tl.int64)
    in_a_round = tl.cast(side_by_side, tl.int64) * tiles
    first, inside = program // in_a_round * side_by_side, program % in_a_round
    wide = tl.minimum(side_by_side, heads_total - first)
    return first + inside % wide, (inside // wide).to(tl.int32)


@triton.jit
def place(stride_batch, stride_head, stride_row, batch, head, ALIGN: tl.constexpr):
    """Where one head of a tensor lies: (batch, head, head_start, row_stride)."""
    head_start = batch * (tl.cast(stride_batch, tl.int64) * ALIGN) + head * (tl.cast(stride_head, tl.int64) * ALIGN)
    return batch, head, head_start, tl.cast(stride_row, tl.int64) * ALIGN


@triton.jit
def offsets(where, row, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Element offsets of the tile at `row`, int64 [BLOCK, BLOCK_D]."""
    _, _, head_start, row_stride = where
    rows = tl.arange(0, BLOCK).to(tl.int64)
    return (head_start + row * row_stride) + (rows[:, None] * row_stride + tl.arange(0, BLOCK_D)[None, :])


@triton.jit
def load_tile(
    source,
    where,
    row,
    N,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TMA: tl.constexpr,
    CHECK_ROWS: tl.constexpr,
):
    """Rows row .. row + BLOCK of one head, [BLOCK, BLOCK_D]; rows >= N and columns >= D are 0.

    `source` is a descriptor of the whole tensor (the copy engine fills the zeros in) or a pointer. `CHECK_ROWS` False
    promises the pointer path that row + BLOCK <= N.
    """
    batch, head, _, _ = where
    if TMA:
        tile = source.load([batch.to(tl.int32), head.to(tl.int32), row, 0]).reshape(BLOCK, BLOCK_D)
    else:
        pointers = source + offsets(where, row, BLOCK, BLOCK_D)
        row_inside = (row + tl.arange(0, BLOCK))[:, None] < N
        column_inside = tl.arange(0, BLOCK_D)[None, :] < D
        if CHECK_ROWS and D < BLOCK_D:
            tile = tl.load(pointers, mask=row_inside & column_inside, other=0.0)
        elif CHECK_ROWS:
            tile = tl.load(pointers, mask=row_inside, other=0.0)
        elif D < BLOCK_D:
            tile = tl.load(pointers, mask=column_inside, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def store_tile(target, where, row, N, tile, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write the rows < N and columns < D of a tile [BLOCK, BLOCK_D], rounded to the target's dtype."""
    inside = ((row + tl.arange(0, BLOCK))[:, None] < N) & (tl.arange(0, BLOCK_D)[None, :] < D)
    tl.store(target + offsets(where, row, BLOCK, BLOCK_D), tile.to(target.dtype.element_ty), mask=inside)


@triton.jit
def dot_transposed(a, b):
    """a [M, K] times b [N, K] transposed, in fp32.

    An fp32 product runs on the plain ALUs, where a thread would hold its whole rows of length K in registers and spill
    them by the kilobyte. There it is a batch of products over 32 columns each, added up.
    """
    if a.dtype == tl.float32 and a.shape[1] > 32:
        parts: tl.constexpr = a.shape[1] // 32
        a_parts = a.reshape(a.shape[0], parts, 32).permute(1, 0, 2)
        b_parts = b.reshape(b.shape[0], parts, 32).permute(1, 2, 0)
        result = tl.sum(tl.dot(a_parts, b_parts, input_precision="ieee"), 0)
    else:
        result = tl.dot(a, b.T, input_precision="ieee")
    return result


@triton.jit
def tanh(x):
    """tanh(x) = (1 - exp(-2|x|)) / (1 + exp(-2|x|)) with the sign of x; saturates to 1 without overflow.

    Near 0 the difference cancels, so |x| < 1/16 takes the odd Taylor series to x^7, exact to fp32 rounding there.
    """
    decay = tl.exp2(tl.abs(x) * -2.8853900817779268)
    magnitude = (1.0 - decay) / (1.0 + decay)
    square = x * x
    series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.0625, series, tl.where(x < 0, -magnitude, magnitude))


@triton.jit
def tanh_slope(x):
    """1 - tanh(x)^2 as 4 e / (1 + e)^2 with e = exp(-2|x|): where tanh rounds to 1, the difference would be lost."""
    decay = tl.exp2(tl.abs(x) * -2.8853900817779268)
    half = 2.0 / (1.0 + decay)
    return decay * half * half


@triton.jit
def scores(raw, score_scale, RESCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """Scores but for a positive factor, from raw = q·k in fp32; the exponent folds the factor in as `exp2_scale`.

    exp2_scale is scale·log2(e) when the scale is positive, and nothing is done here. A scale that is not positive is
    multiplied in here (`RESCALE`), because a maximum does not commute with it. With softcap this is
    tanh(scale·raw / cap), and exp2_scale is cap·log2(e).
    """
    if SOFTCAP:
        raw = tanh(raw * score_scale)
    elif RESCALE:
        raw = raw * score_scale
    return raw
