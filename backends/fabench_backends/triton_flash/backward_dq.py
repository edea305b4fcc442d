"""dQ: one program a query tile. It also computes delta = rowsum(O * dO), which the dK, dV kernel reads."""

from __future__ import annotations

import triton
import triton.language as tl

from fabench_backends.triton_flash.gradients import derivative, exp2_lse, probabilities
from fabench_backends.triton_flash.masks import around, key_tiles
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
def add_key_tiles(
    dq,
    q,
    do,
    lse,
    delta,
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
    """dQ over the key tiles of [first, end), if MASKED counted `around` the full ones."""
    for position in tl.range(first, end, BLOCK_N):
        key = position
        if MASKED:
            key = around(position, full_start, full_end)
        keys = key + tl.arange(0, BLOCK_N)
        # S = Q K^T, P = exp2(S - LSE), dP = dO V^T, dQ += dS K
        k = load_tile(K, k_place, key, Nk, D, BLOCK_N, BLOCK_D, TMA, MASKED)
        raw = dot_transposed(q, k)
        s = scores(raw, score_scale, RESCALE, SOFTCAP)
        p = probabilities(
            s, lse[:, None], queries[:, None], keys[None, :], band, Nk, exp2_scale, MASKED, HAS_LEFT, HAS_RIGHT
        )
        v = load_tile(V, v_place, key, Nk, DV, BLOCK_N, BLOCK_DV, TMA, MASKED)
        dp = dot_transposed(do, v)
        ds = derivative(p, dp, delta[:, None], raw, score_scale, SOFTCAP)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


STRIDES = [f"stride_{tensor}{axis}" for tensor in ("q", "k", "v", "o", "do", "dq") for axis in "bhn"]


@triton.jit(do_not_specialize=RUNTIME_INTS + STRIDES)
def triton_flash_backward_dq(
    Q,  # [batch, heads, Nq, D]
    K,  # [batch, kv_heads, Nk, D], pointer or descriptor
    V,  # [batch, kv_heads, Nk, DV], pointer or descriptor
    O,  # [batch, heads, Nq, DV]
    DO,  # [batch, heads, Nq, DV]
    LSE,  # [batch, heads, Nq] fp32, contiguous
    DLSE,  # like LSE: the gradient that reached it, read if HAS_DLSE
    DELTA,  # [batch, heads, Nq] fp32, contiguous, written here
    DQ,  # [batch, heads, Nq, D]
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
    stride_dob,
    stride_doh,
    stride_don,
    stride_dqb,
    stride_dqh,
    stride_dqn,
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
    HAS_DLSE: tl.constexpr,
):
    """dQ and delta of one query tile of one head. Grid: heads_total · cdiv(Nq, BLOCK_M), heavy causal tiles first."""
    index, light = head_and_tile(heads_total, side_by_side, tl.cdiv(Nq, BLOCK_M))
    tile = tl.cdiv(Nq, BLOCK_M) - 1 - light
    batch, head = index // heads, index % heads
    k_place = place(stride_kb, stride_kh, stride_kn, batch, head // group, ALIGN)
    v_place = place(stride_vb, stride_vh, stride_vn, batch, head // group, ALIGN)
    band = (offset, left, right)

    row = tile * BLOCK_M
    queries = row + tl.arange(0, BLOCK_M)
    row_start = (batch * heads + head) * Nq
    q = load_tile(
        Q, place(stride_qb, stride_qh, stride_qn, batch, head, ALIGN), row, Nq, D, BLOCK_M, BLOCK_D, False, True
    )
    o = load_tile(
        O, place(stride_ob, stride_oh, stride_on, batch, head, ALIGN), row, Nq, DV, BLOCK_M, BLOCK_DV, False, True
    )
    do = load_tile(
        DO, place(stride_dob, stride_doh, stride_don, batch, head, ALIGN), row, Nq, DV, BLOCK_M, BLOCK_DV, False, True
    )
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    lse = tl.load(LSE + row_start + queries, mask=queries < Nq, other=float("-inf"))
    if HAS_DLSE:  # d LSE / d S is P: it enters dS where delta does; where P is 0 it must not matter, whatever it is
        delta -= tl.load(DLSE + row_start + queries, mask=queries < Nq, other=0.0)
        delta = tl.where(lse == float("-inf"), 0.0, delta)
    tl.store(DELTA + row_start + queries, delta, mask=queries < Nq)
    lse = exp2_lse(lse)

    last_row = tl.minimum(row + BLOCK_M, Nq) - 1
    start, full_start, full_end, end = key_tiles(row, last_row, band, Nk, BLOCK_N, HAS_LEFT, HAS_RIGHT)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dq = add_key_tiles(
        dq, q, do, lse, delta, K, V, k_place, v_place, queries, start, end - (full_end - full_start),
        full_start, full_end, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, True,
        HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
    )  # fmt: skip
    dq = add_key_tiles(
        dq, q, do, lse, delta, K, V, k_place, v_place, queries, full_start, full_end,
        full_start, full_end, Nk, band, score_scale, exp2_scale, D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, False,
        HAS_LEFT, HAS_RIGHT, RESCALE, SOFTCAP, TMA,
    )  # fmt: skip
    dq_place = place(stride_dqb, stride_dqh, stride_dqn, batch, head, ALIGN)
    store_tile(DQ, dq_place, row, Nq, dq * scale, D, BLOCK_M, BLOCK_D)
