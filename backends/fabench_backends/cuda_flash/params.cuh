// What a launch passes, by value. params.py holds the same fields in the same order; a test compares the two.
#pragma once
#include "ptx.cuh"

// Strides are in elements; the last dimension has stride 1. `low` and `high` are those of band.cuh.
struct ForwardParams {
    const u16* q;       // [batch, heads, Nq, d]
    const u16* k;       // [batch, kv_heads, Nk, d]
    const u16* v;       // [batch, kv_heads, Nk, dv]
    u16* o;             // [batch, heads, Nq, dv]
    float* lse;         // [batch, heads, Nq], natural log
    float* o_partial;   // [splits, batch, heads, Nq, dv] where splits > 1
    float* lse_partial; // [splits, batch, heads, Nq] where splits > 1
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    i64 o_batch, o_head, o_row;
    int batch, heads, group;  // group = heads / kv_heads
    int Nq, Nk, d, dv;
    int low, high;
    int splits;
    float scale, softcap;
};

struct BackwardParams {
    const u16* q;        // [batch, heads, Nq, d]
    const u16* k;        // [batch, kv_heads, Nk, d]
    const u16* v;        // [batch, kv_heads, Nk, dv]
    const u16* dO;       // [batch, heads, Nq, dv]
    const float* lse2;   // [batch, heads, Nq_padded], log2 e times the LSE; +inf where a row sees no key or is padding
    const float* delta;  // [batch, heads, Nq_padded], rowsum(O * dO) - dLSE; 0 where a row is padding
    float* dq;           // [batch, heads, Nq, d], sums; still to be scaled
    u16* dk;             // [batch, kv_heads, Nk, d], contiguous
    u16* dv;             // [batch, kv_heads, Nk, dv], contiguous
    int* turn;           // [batch, heads, tiles of queries, warps], zeros; null unless deterministic
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    i64 dO_batch, dO_head, dO_row;
    int batch, heads, group;  // group = heads / kv_heads
    int Nq, Nk, Nq_padded, d_qk, d_v;
    int low, high;
    float scale, softcap;
};

struct PrepareParams {
    const u16* o;      // [batch, heads, Nq, dv]
    const u16* dO;     // [batch, heads, Nq, dv]
    const float* lse;  // [batch, heads, Nq]
    const float* dlse; // [batch, heads, Nq], or null for none
    float* lse2;       // [batch, heads, Nq_padded]
    float* delta;      // [batch, heads, Nq_padded]
    float* dq;         // [batch, heads, Nq, d]
    i64 o_batch, o_head, o_row;
    i64 dO_batch, dO_head, dO_row;
    int heads, Nq, Nq_padded, d_qk, d_v;
};

struct FinishParams {
    const float* sums;
    u16* out;
    i64 count;  // a multiple of 8
    float scale;
};

// v1 keeps O, m and l in global memory between its outer steps.
struct V1ForwardParams {
    const u16* q;  // [batch, heads, Nq, d]
    const u16* k;  // [batch, kv_heads, Nk, d]
    const u16* v;  // [batch, kv_heads, Nk, dv]
    u16* o;        // [batch, heads, Nq, dv], contiguous
    float* lse;    // [batch, heads, Nq], natural log
    float* o_hbm;  // [batch, heads, Nq, dv]
    float* m_hbm;  // [batch, heads, Nq], in log2 units
    float* l_hbm;  // [batch, heads, Nq]
    i64 q_batch, q_head, q_row;
    i64 k_batch, k_head, k_row;
    i64 v_batch, v_head, v_row;
    int heads, group;  // group = heads / kv_heads
    int Nq, Nk, d, dv;
    int low, high;
    float scale;
};
