// The backward for one tile of keys, by one CTA:  dK and dV of BLOCK_KV keys, and what they add to dQ of all queries.
//
//   P = exp(scale Q K^T - LSE)   dP = dO V^T   dS = P (dP - delta)   dV = P^T dO   dK = scale dS^T Q   dQ = scale dS K
//
// The CTA walks over the queries of all heads that share its kv head, BLOCK_Q at a time. dK and dV stay in registers;
// dQ is added up in global memory.
//
// All is computed transposed, S^T = K Q^T. The warps form WARPS_KV rows of keys by WARPS_Q columns, of queries for the
// scores and of the head dim for dK and dV. With one column a warp's P^T and dS^T are, as they leave the mma's, the
// very fragments that dV += P^T dO and dK += dS^T Q take in. With two they go through shared memory, which lets a warp
// own twice the keys for the same registers and so read less: better for large D, where shared memory is the limit.
//
// A step has two halves that do not depend on one another: the scores of this step, and the sums over other warps'
// scores (dQ; and dV, dK unless in registers) of the step before. So one barrier a step is enough, and of the two warps
// in an SM partition one takes the halves in the other order: exponentials of one run beside mma's of the other.
//
// Set by -D: HEAD_DIM, IS_BF16, MASK, WARPS, WARPS_KV, M_TILES, BLOCK_Q, DQ_WARPS_Q.
#pragma once
#include "band.cuh"
#include "mma_tile.cuh"
#include "params.cuh"
#include "scores.cuh"
#include "turns.cuh"

// MASK: 0 only the end of the keys, 1 any band (causal, window), 2 a band and a softcap.
constexpr int D = HEAD_DIM;  // of q, k and v, padded with zeros from d and dv
constexpr int THREADS = WARPS * 32, WARPS_Q = WARPS / WARPS_KV;
constexpr int WARP_KV = 16 * M_TILES, BLOCK_KV = WARPS_KV * WARP_KV;
constexpr int WARP_Q = BLOCK_Q / WARPS_Q;                                             // queries of a warp's scores
constexpr int WARP_D = D / WARPS_Q;                                                   // columns of its dK and dV
constexpr int DQ_ROWS = BLOCK_Q / DQ_WARPS_Q, DQ_COLUMNS = D / (WARPS / DQ_WARPS_Q);  // its part of dQ [BLOCK_Q, D]
constexpr bool P_IN_REGISTERS = WARPS_Q == 1;
static_assert(WARP_Q % 16 == 0 && WARP_D % 16 == 0, "a warp's scores and gradients are made of 16x16 fragments");
static_assert(DQ_ROWS % 16 == 0 && DQ_COLUMNS % 16 == 0, "a warp's part of dQ is made of 16x16 fragments");

// Shared memory: K, V; two buffers of dS^T and of P^T [keys, queries]; and per stage Q, dO, lse2, delta of one step.
// The step before still needs its Q and dO unless P is in registers.
constexpr u32 KV_BYTES = BLOCK_KV * D * 2, P_BYTES = BLOCK_KV * BLOCK_Q * 2;
constexpr u32 Q_BYTES = BLOCK_Q * D * 2, ROW_BYTES = BLOCK_Q * 4;
constexpr u32 K_SMEM = 0, V_SMEM = KV_BYTES, DS_SMEM = 2 * KV_BYTES, P_SMEM = DS_SMEM + 2 * P_BYTES;
constexpr u32 Q_SMEM = P_IN_REGISTERS ? P_SMEM : P_SMEM + 2 * P_BYTES, DO_SMEM = Q_SMEM + Q_BYTES;
constexpr u32 LSE_SMEM = DO_SMEM + Q_BYTES, DELTA_SMEM = LSE_SMEM + ROW_BYTES;
constexpr u32 STAGE_BYTES = 2 * Q_BYTES + 2 * ROW_BYTES, STAGES = P_IN_REGISTERS ? 2 : 3;
static_assert(Q_SMEM + STAGES * STAGE_BYTES == SMEM, "the host's shared memory size must match");

using Scores = Accumulator<M_TILES, WARP_Q / 8>;    // [keys, queries]
using Gradient = Accumulator<M_TILES, WARP_D / 8>;  // [keys, columns]

// A thread's place: lane and warp; the warp's first key, query (of scores) and column (of dK, dV), and its part of dQ.
struct Place {
    u32 lane, warp;
    int row, query, column, dq_row, dq_column;
    __device__ __forceinline__ Place(u32 thread) : lane(thread % 32), warp(thread / 32) {
        row = warp % WARPS_KV * WARP_KV, query = warp / WARPS_KV * WARP_Q, column = warp / WARPS_KV * WARP_D;
        dq_row = warp / (WARPS / DQ_WARPS_Q) * DQ_ROWS, dq_column = warp % (WARPS / DQ_WARPS_Q) * DQ_COLUMNS;
    }
};

// `head` counts batch * kv_heads + kv_head; `key_tile` counts from 0.
__device__ __forceinline__ void backward_tile(const BackwardParams& p, int head_index, int key_tile) {
    extern __shared__ __align__(128) unsigned char smem[];
    const u32 smem_base = smem_address(smem);
    const int kv_heads = p.heads / p.group, key0 = key_tile * BLOCK_KV;
    const int batch_id = uniform(head_index / kv_heads), kv_head_id = uniform(head_index % kv_heads);
    const Band band{p.low, p.high, p.Nq, p.Nk};
    const BackwardScale scale(p.scale, MASK == 2 ? p.softcap : 0.f);

    // Tiles of queries that see any of these keys, in every head of the group.
    const int query_end = MASK ? band.end_query(min(key0 + BLOCK_KV, p.Nk) - 1) : p.Nq;
    const int first_tile = (MASK ? band.first_query(key0) : 0) / BLOCK_Q;
    const int end_tile = (query_end + BLOCK_Q - 1) / BLOCK_Q;
    const int steps = max(end_tile - first_tile, 0) * p.group;

    auto load_queries = [&](int head, int tile, u32 stage) {  // Q, dO, lse2, delta
        const u32 thread = read_thread_id();
        const int head_id = kv_head_id * p.group + head, q0 = tile * BLOCK_Q;
        const TileCopy<D, BLOCK_Q, THREADS> copy(thread);
        const u16* Q = p.q + batch_id * p.q_batch + head_id * p.q_head + q0 * p.q_row;
        const u16* dO = p.dO + batch_id * p.dO_batch + head_id * p.dO_head + q0 * p.dO_row;
        copy.load(smem_base + Q_SMEM + stage, Q, p.q_row, p.Nq - q0, p.d_qk);
        copy.load(smem_base + DO_SMEM + stage, dO, p.dO_row, p.Nq - q0, p.d_v);
        const i64 row0 = (i64(batch_id) * p.heads + head_id) * p.Nq_padded + q0 + thread * 4;
        if (thread < BLOCK_Q / 4) {
            cp_async_16(smem_base + LSE_SMEM + stage + thread * 16, p.lse2 + row0, true);
            cp_async_16(smem_base + DELTA_SMEM + stage + thread * 16, p.delta + row0, true);
        }
        cp_async_commit();
    };

    // What the products read, as rows of keys or queries, or as columns of the head dim, that belong to this warp.
    const Place start(threadIdx.x);
    const Blocks<D, DOWN> K_rows(smem_base + K_SMEM, start.row, 0, start.lane);
    const Blocks<D, ACROSS> Q_rows(smem_base + Q_SMEM, start.query, 0, start.lane);
    const Blocks<D, DOWN, WARP_D> Q_columns(smem_base + Q_SMEM, 0, start.column, start.lane);
    const Blocks<BLOCK_Q, DOWN> P_rows(smem_base + P_SMEM, start.row, 0, start.lane);
    const Blocks<BLOCK_Q, ACROSS, DQ_ROWS> dS_columns(smem_base + DS_SMEM, 0, start.dq_row, start.lane);
    const Blocks<D, DOWN, DQ_COLUMNS> K_columns(smem_base + K_SMEM, 0, start.dq_column, start.lane);

    Gradient dK = {}, dV = {};
    auto scores = [&](int tile, u32 stage, u32 buffer) {
        const Place at(read_thread_id());
        const int q0 = tile * BLOCK_Q;
        auto multiply_transposed = [&](Scores& C, u32 A_offset, u32 B_offset) {  // C [WARP_KV, WARP_Q] = A B^T
            clear(C);
            multiply<D / 16>(
                C, [&](u32 (&A)[4], int k, int m) { K_rows.load_A(A, k, m * 16, A_offset); },
                [&](u32 (&B)[4], int k, int n) { Q_rows.load_B_trans(B, k, n * 16, B_offset); });
        };
        Scores S, dP;
        multiply_transposed(S, 0, stage);                                      // S^T = K Q^T
        multiply_transposed(dP, V_SMEM - K_SMEM, stage + (DO_SMEM - Q_SMEM));  // dP^T = V dO^T

        const float2* lse2 = reinterpret_cast<const float2*>(smem + LSE_SMEM + stage + at.query * 4) + at.lane % 4;
        const float2* delta = reinterpret_cast<const float2*>(smem + DELTA_SMEM + stage + at.query * 4) + at.lane % 4;
        if constexpr (MASK == 2) {
            slope_of_cap(dP, S, delta, scale.over_softcap);
            cap(S, scale.over_softcap);
        }
        if (MASK ? !band.full(q0, min(q0 + BLOCK_Q, p.Nq), key0, key0 + BLOCK_KV) : key0 + BLOCK_KV > p.Nk)
            hide_queries(S, band, key0 + at.row, q0 + at.query, at.lane, scale.hidden);
        differentiate<MASK == 2>(S, dP, lse2, delta, scale.log2);  // S := P, dP := dS

        store_tile<BLOCK_Q>(smem + DS_SMEM + buffer, dP, 1.f, at.row, at.query, at.lane);
        if constexpr (P_IN_REGISTERS) {
            auto multiply_add = [&](Gradient& C, const Scores& A_rmem, u32 B_offset) {  // C [WARP_KV, D] += A B
                multiply<BLOCK_Q / 16>(
                    C, [&](u32 (&A)[4], int k, int m) { to_A(A, A_rmem, k, m); },
                    [&](u32 (&B)[4], int k, int n) { Q_columns.load_B(B, n, k * 16, B_offset); });
            };
            multiply_add(dV, S, stage + (DO_SMEM - Q_SMEM));  // dV += P^T dO
            multiply_add(dK, dP, stage);                      // dK += dS^T Q
        } else {
            store_tile<BLOCK_Q>(smem + P_SMEM + buffer, S, 1.f, at.row, at.query, at.lane);
        }
    };
    auto sums = [&](int head, int tile, u32 stage, u32 buffer) {
        const Place at(read_thread_id());
        const int q0 = tile * BLOCK_Q;
        if constexpr (!P_IN_REGISTERS) {
            auto multiply_add = [&](Gradient& C, u32 A_offset, u32 B_offset) {  // C [WARP_KV, WARP_D] += A B
                multiply<BLOCK_Q / 16>(
                    C, [&](u32 (&A)[4], int k, int m) { P_rows.load_A(A, k, m * 16, A_offset); },
                    [&](u32 (&B)[4], int k, int n) { Q_columns.load_B(B, n, k * 16, B_offset); });
            };
            multiply_add(dV, buffer, stage + (DO_SMEM - Q_SMEM));  // dV += P^T dO
            multiply_add(dK, buffer + (DS_SMEM - P_SMEM), stage);  // dK += dS^T Q
        }
        // dQ = dS K [DQ_ROWS, DQ_COLUMNS]
        Accumulator<DQ_ROWS / 16, DQ_COLUMNS / 8> dQ;
        clear(dQ);
        multiply<BLOCK_KV / 16>(
            dQ, [&](u32 (&A)[4], int k, int m) { dS_columns.load_A_trans(A, m, k * 16, buffer); },
            [&](u32 (&B)[4], int k, int n) { K_columns.load_B(B, n, k * 16, 0); });

        const i64 head_id = i64(batch_id) * p.heads + kv_head_id * p.group + head;
        float* to = p.dq + (head_id * p.Nq + q0 + at.dq_row) * p.d_qk + at.dq_column;
        // When deterministic: after all tiles of keys that come first.
        const int before = key_tile - (MASK ? band.first_key(q0) / BLOCK_KV : 0);
        int* turn = p.turn + (head_id * ((p.Nq + BLOCK_Q - 1) / BLOCK_Q) + tile) * WARPS + at.warp;
        if (p.turn != nullptr) wait_for_turn(turn, before, at.lane);
        add_out(to, p.d_qk, dQ, p.Nq - q0 - at.dq_row, p.d_qk - at.dq_column, at.lane);
        if (p.turn != nullptr) end_turn(turn, before, at.lane);
    };

    if (steps > 0) {
        const TileCopy<D, BLOCK_KV, THREADS> copy(threadIdx.x);
        const u16* K = p.k + batch_id * p.k_batch + kv_head_id * p.k_head + key0 * p.k_row;
        const u16* V = p.v + batch_id * p.v_batch + kv_head_id * p.v_head + key0 * p.v_row;
        copy.load(smem_base + K_SMEM, K, p.k_row, p.Nk - key0, p.d_qk);
        copy.load(smem_base + V_SMEM, V, p.v_row, p.Nk - key0, p.d_v);
        load_queries(0, first_tile, 0);
    }
    // The head and tile of queries of a step follow from those of the one before; stage and buffer from its number.
    struct Step {
        int head, tile;
    };
    auto after = [&](Step s) {
        return s.tile + 1 == end_tile ? Step{s.head + 1, first_tile} : Step{s.head, s.tile + 1};
    };
    auto stage_of = [](u32 step) { return step % STAGES * STAGE_BYTES; };
    auto buffer_of = [](u32 step) { return step % 2 * P_BYTES; };
    Step last{0, first_tile - 1};
    for (int step = 0; step <= steps; step++) {
        // This step's tiles have landed, every warp has left the last step, and its scores are in shared memory.
        cp_async_wait<0>();
        __syncthreads();
        const Step now = after(last), next = after(now);
        if (step + 1 < steps) load_queries(next.head, next.tile, stage_of(step + 1));
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            if (half == (WARPS > 4 ? threadIdx.x / 128 % 2 : 0)) {
                if (step < steps) scores(now.tile, stage_of(step), buffer_of(step));
            } else if (step > 0) {
                sums(last.head, last.tile, stage_of(step - 1), buffer_of(step - 1));
            }
        }
        last = now;
    }

    // Through the shared memory of K and V, for whole 16-byte stores.
    __syncthreads();
    const Place at(read_thread_id());
    const int keys = p.Nk - key0;
    u16* dK_out = p.dk + (i64(head_index) * p.Nk + key0) * p.d_qk;
    u16* dV_out = p.dv + (i64(head_index) * p.Nk + key0) * p.d_v;
    store_tile<D>(smem + K_SMEM, dK, p.scale, at.row, at.column, at.lane);
    store_tile<D>(smem + V_SMEM, dV, 1.f, at.row, at.column, at.lane);
    __syncwarp();
    copy_out<D, WARP_KV, WARP_D>(dK_out, p.d_qk, smem + K_SMEM, at.row, at.column, keys, p.d_qk, at.lane);
    copy_out<D, WARP_KV, WARP_D>(dV_out, p.d_v, smem + V_SMEM, at.row, at.column, keys, p.d_v, at.lane);
}
