"""dK and dV: one program a key tile, which sums over the query heads of its group in fp32. Everything is transposed."""

from __future__ import annotations

import triton
import triton.language as tl

from fabench_backends.triton_flash.gradients import derivative, exp2_lse, probabilities
from fabench_backends.triton_flash.masks import around, query_tiles
from fabench_backends.triton_flash.primitives import (
    RUNTIME_INTS,
    dot_transposed,
    head_and_tile,
    load_tile,
    place,
    scores,
    store_tile,
)


@triton.jit
def add_query_tiles(
    dk,
    dv,
    k,
    v,
    Q,
    DO,
    LSE,
    DELTA,
    q_place,
    do_place,
    row_start,
    keys,
    first,
    end,
    full_start,
    full_end,
    Nq,
    Nk,
    band,
    score_scale,
    exp2_scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    RESCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    TMA: tl.constexpr,
):
    """dK and dV over query tiles as in `add_key_tiles`. All is transposed: S^T = K Q^T [BLOCK_N, BLOCK_M]."""
    for position in tl.range(first, end, BLOCK_M):
        query = position
        if MASKED:
            query = around(position, full_start, full_end)
        queries = query + tl.arange(0, BLOCK_M)
        # S^T = K Q^T, P^T = exp2(S^T - LSE), dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
        q = load_tile(Q, q_place, query, Nq, D, BLOCK_M, BLOCK_D, TMA, MASKED)
        raw = dot_transposed(k, q)
        s = scores(raw, score_scale, RESCALE, SOFTCAP)
        if MASKED:
            lse = tl.load(LSE + row_start + queries, mask=queries < Nq, other=float("-inf"))
            delta = tl.load(DELTA + row_start + queries, mask=queries < Nq, other=0.0)
        else:
            lse = tl.load(LSE + row_start + queries)
            delta = tl.load(DELTA + row_start + queries)
        lse = exp2_lse(lse)
        p = probabilities(
            s, lse[None, :], queries[None, :], keys[:, None], band, Nk, exp2_scale, MASKED, HAS_LEFT, HAS_RIGHT
        )
        do = load_tile(DO, do_place, query, Nq, DV, BLOCK_M, BLOCK_DV, TMA, MASKED)
        dp = dot_transposed(v, do)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        ds = derivative(p, dp, delta[None, :], raw, score_scale, SOFTCAP).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
    return dk, dv


STRIDES = [f"stride_{tensor}{axis}" for tensor in ("q", "k", "v", "do", "dk", "dv") for axis in "bhn"]


@triton.jit(do_not_specialize=RUNTIME_INTS + STRIDES)
def triton_flash_backward_dkdv(
    Q,  # [batch, heads, Nq, D], pointer or descriptor
    K,  # [batch, kv_heads, Nk, D]
    V,  # [batch, kv_heads, Nk, DV]
    DO,  # [batch, heads, Nq, DV], pointer or descriptor
    LSE,  # [batch, heads, Nq] fp32, contiguous
    DELTA,  # [batch, heads, Nq] fp32, contiguous
    DK,  # [batch, kv_heads, Nk, D]
    DV_OUT,  # [batch, kv_heads, Nk, DV]
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_dob,
    stride_doh,
    stride_don,
    stride_dkb,
    stride_dkh,
    stride_dkn,
    stride_dvb,
    stride_dvh,
    stride_dvn,
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
    scale,
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
    """dK and dV of one key tile of one kv head. Grid: heads_total (here batch·kv_heads) · cdiv(Nk, BLOCK_N)."""
    index, tile = head_and_tile(heads_total, side_by_side, tl.cdiv(Nk, BLOCK_N))  # causal: the first is the heaviest
    kv_heads = heads // group
    batch, kv_head = index // kv_heads, index % kv_heads
    band = (offset, left, right)

    row = tile * BLOCK_N
    keys = row + tl.arange(0, BLOCK_N)
    k = load_tile(
        K, place(stride_kb, stride_kh, stride_kn, batch, kv_head, ALIGN), row, Nk, D, BLOCK_N, BLOCK_D, False, True
    )
    v = load_tile(
        V, place(stride_vb, stride_vh, stride_vn, batch, kv_head, ALIGN), row, Nk, DV, BLOCK_N, BLOCK_DV, False, True
    )
    last_row = tl.minimum(row + BLOCK_N, Nk) - 1
    start, full_start, full_end, end = query_tiles(row, last_row, band, Nq, BLOCK_M, HAS_LEFT, HAS_RIGHT)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for member in range(group):
        head = kv_head * group + member
        q_place = place(stride_qb, stride_qh, stride_qn, batch, head, ALIGN)
        do_place = place(stride_dob, stride_doh, stride_don, batch, head, ALIGN)
        row_start = (batch * heads + head) * Nq
        dk, dv = add_query_tiles(
            dk, dv, k, v, Q, DO, LSE, DELTA, q_place, do_place, row_start, keys, start, end - (full_end - full_start),
            full_start, full_end, Nq, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_M, BLOCK_D, BLOCK_DV, True,
            HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
        )  # fmt: skip
        dk, dv = add_query_tiles(
            dk, dv, k, v, Q, DO, LSE, DELTA, q_place, do_place, row_start, keys, full_start, full_end,
            full_start, full_end, Nq, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_M, BLOCK_D, BLOCK_DV, False,
            HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
        )  # fmt: skip
    dk_place = place(stride_dkb, stride_dkh, stride_dkn, batch, kv_head, ALIGN)
    dv_place = place(stride_dvb, stride_dvh, stride_dvn, batch, kv_head, ALIGN)
    store_tile(DK, dk_place, row, Nk, dk * scale, D, BLOCK_N, BLOCK_D)
    store_tile(DV_OUT, dv_place, row, Nk, dv, DV, BLOCK_N, BLOCK_DV)
