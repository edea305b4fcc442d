"""Forward: one program a query tile, online softmax over its key tiles (Dao 2023, arXiv 2307.08691, Algorithm 1)."""

from __future__ import annotations

import triton
import triton.language as tl

from fabench_backends.triton_flash.masks import around, key_tiles, visible
from fabench_backends.triton_flash.primitives import (
    RUNTIME_INTS,
    dot_transposed,
    head_and_tile,
    load_tile,
    place,
    scores,
    store_tile,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def softmax_step(
    s,
    row_sum,
    row_max,
    queries,
    key,
    Nk,
    band,
    exp2_scale,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
):
    """P of one tile, the factor that rescales what came before, and the new row_sum and row_max (in exp2 units)."""
    if MASKED:
        keys = key + tl.arange(0, BLOCK_N)
        s = tl.where(visible(queries[:, None], keys[None, :], band, Nk, HAS_LEFT, HAS_RIGHT), s, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(s, 1) * exp2_scale)
    pivot = new_max
    if MASKED:
        # A row that has seen no key yet keeps the maximum -inf; 0 stands in for it, in the exponent only.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.exp2(s * exp2_scale - pivot[:, None])
    correction = tl.exp2(row_max - pivot)
    return p, correction, row_sum * correction + tl.sum(p, 1), new_max


@triton.jit
def attend(
    accumulator,
    row_sum,
    row_max,
    q,
    K,
    V,
    k_place,
    v_place,
    queries,
    first,
    end,
    full_start,
    full_end,
    Nk,
    band,
    score_scale,
    exp2_scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    RESCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    TMA: tl.constexpr,
):
    """Fold key tiles into (accumulator, row_sum, row_max): those of [first, end), if MASKED counted `around` full."""
    for position in tl.range(first, end, BLOCK_N):
        key = position
        if MASKED:
            key = around(position, full_start, full_end)
        # S = Q K^T, fp32 [BLOCK_M, BLOCK_N]
        k = load_tile(K, k_place, key, Nk, D, BLOCK_N, BLOCK_D, TMA, MASKED)
        s = scores(dot_transposed(q, k), score_scale, RESCALE, SOFTCAP)
        p, correction, row_sum, row_max = softmax_step(
            s, row_sum, row_max, queries, key, Nk, band, exp2_scale, BLOCK_N, MASKED, HAS_LEFT, HAS_RIGHT
        )
        # O = O * correction + P V
        v = load_tile(V, v_place, key, Nk, DV, BLOCK_N, BLOCK_DV, TMA, MASKED)
        accumulator = tl.dot(p.to(v.dtype), v, accumulator * correction[:, None], input_precision="ieee")
    return accumulator, row_sum, row_max


STRIDES = [f"stride_{tensor}{axis}" for tensor in "qkvo" for axis in "bhn"]


@triton.jit(do_not_specialize=RUNTIME_INTS + STRIDES)
def triton_flash_forward(
    Q,  # [batch, heads, Nq, D]
    K,  # [batch, kv_heads, Nk, D], pointer or descriptor
    V,  # [batch, kv_heads, Nk, DV], pointer or descriptor
    O,  # [batch, heads, Nq, DV]
    LSE,  # [batch, heads, Nq] fp32, contiguous
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_ob,
    stride_oh,
    stride_on,
    heads,
    heads_total,
    side_by_side,
    group,
    Nq,
    Nk,
    offset,
    left,
    right,
    score_scale,
    exp2_scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    RESCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIGN: tl.constexpr,
    TMA: tl.constexpr,
):
    """O and LSE of one query tile of one head. Grid: heads_total · cdiv(Nq, BLOCK_M), ordered by head_and_tile."""
    index, light = head_and_tile(heads_total, side_by_side, tl.cdiv(Nq, BLOCK_M))
    # Under a causal mask the last query tile has the most keys: heavy tiles start first, light ones fill the tail.
    tile = tl.cdiv(Nq, BLOCK_M) - 1 - light
    batch, head = index // heads, index % heads
    q_place = place(stride_qb, stride_qh, stride_qn, batch, head, ALIGN)
    k_place = place(stride_kb, stride_kh, stride_kn, batch, head // group, ALIGN)
    v_place = place(stride_vb, stride_vh, stride_vn, batch, head // group, ALIGN)
    o_place = place(stride_ob, stride_oh, stride_on, batch, head, ALIGN)
    band = (offset, left, right)

    first_query = tile * BLOCK_M
    last_query = tl.minimum(first_query + BLOCK_M, Nq) - 1
    queries = first_query + tl.arange(0, BLOCK_M)
    start, full_start, full_end, end = key_tiles(first_query, last_query, band, Nk, BLOCK_N, HAS_LEFT, HAS_RIGHT)

    q = load_tile(Q, q_place, first_query, Nq, D, BLOCK_M, BLOCK_D, False, True)
    accumulator = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    accumulator, row_sum, row_max = attend(
        accumulator, row_sum, row_max, q, K, V, k_place, v_place, queries, full_start, full_end,
        full_start, full_end, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, False,
        HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
    )  # fmt: skip
    accumulator, row_sum, row_max = attend(
        accumulator, row_sum, row_max, q, K, V, k_place, v_place, queries, start, end - (full_end - full_start),
        full_start, full_end, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, True,
        HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
    )  # fmt: skip

    # The one division. A row without keys has row_sum 0 (NaN is not 0): O = 0, LSE = -inf.
    empty = row_sum == 0.0
    o = tl.where(empty[:, None], 0.0, accumulator / tl.where(empty, 1.0, row_sum)[:, None])
    lse = tl.where(empty, float("-inf"), (row_max + tl.log2(row_sum)) * LN2)
    store_tile(O, o_place, first_query, Nq, o, DV, BLOCK_M, BLOCK_DV)
    tl.store(LSE + (batch * heads + head) * Nq + queries, lse, mask=queries < Nq)
