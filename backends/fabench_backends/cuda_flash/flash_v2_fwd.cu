// FlashAttention-2 forward (Dao 2023, arXiv 2307.08691, Algorithm 1):  O = softmax(scale Q K^T + mask) V  and the LSE.
//
// What changed since v1 (flash_v1_fwd.cu): the outer loop runs over Q and lives in the grid, so O, the row maximum m
// and the row sum l stay in registers from the first key to the last; the division by l happens once, at the end; and
// there are enough CTAs to fill the card at any batch size.
//
// One CTA computes BLOCK_Q queries of one head. It walks the keys backwards, BLOCK_KV at a time, so that the tiles cut
// by the causal diagonal come first. K and V are double-buffered in swizzled shared memory by cp.async. Each warp owns
// 16 * M_TILES rows: every K and V fragment read from shared memory feeds M_TILES mma's.
//
// Measured on an H200, bf16, d = 128, N = 16k: 420 TFLOP/s, 1.15x the flash kernel of SDPA; README.md has the rest.
// Set by -D: HEAD_DIM, IS_BF16, MASK, WARPS, M_TILES, BLOCK_KV, MIN_CTAS, Q_IN_REGISTERS.
#include "band.cuh"
#include "mma_tile.cuh"
#include "params.cuh"
#include "scores.cuh"

// MASK: 0 only the end of the keys, 1 any band (causal, window), 2 a band and a softcap.
constexpr int D = HEAD_DIM;  // of q, k, v and O, padded with zeros from d and dv
constexpr int THREADS = WARPS * 32;
constexpr int WARP_Q = 16 * M_TILES;
constexpr int BLOCK_Q = WARPS * WARP_Q;
constexpr u32 Q_BYTES = BLOCK_Q * D * 2;
constexpr u32 KV_BYTES = BLOCK_KV * D * 2;
constexpr u32 K_SMEM = Q_BYTES, V_SMEM = K_SMEM + 2 * KV_BYTES;
static_assert(V_SMEM + 2 * KV_BYTES == SMEM, "the host's shared memory size must match");
static_assert(D % 32 == 0 && BLOCK_KV % 16 == 0, "tiles are made of 16x16 fragments");

constexpr float LN_2 = 0.6931471805599453f, LOG2_E = 1.4426950408889634f;

// The maximum may lag behind by this much (in log2) before O and l are rescaled: P stays below 2^8 and the final
// division is exact whatever maximum was used, so most tiles skip D multiplications a row.
constexpr float RESCALE_LOG2 = 8.f;

// The maximum of no keys: finite, so that -inf - max stays -inf, and below any score that is not about to overflow.
constexpr float NO_KEY_YET = -3e38f;

// A running softmax of the rows a thread shares with its quad: per 16-row tile the rows lane/4 and lane/4 + 8.
struct Rows {
    float max[M_TILES][2];  // in log2 units: of S * scale * log2(e)
    float sum[M_TILES][2];  // of this thread's columns only, until the end
};

using Scores = Accumulator<M_TILES, BLOCK_KV / 8>;  // [queries, keys]
using Output = Accumulator<M_TILES, D / 8>;         // [queries, columns]

// Raise the row maxima to cover S; where one rises by more than RESCALE_LOG2, rescale O and l by 2^(old - new).
__device__ __forceinline__ void update_max(Rows& rows, Output& O, const Scores& S, float scale_log2) {
    float new_max[M_TILES][2];
    bool rescale = false;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = S[m][0][half * 2];
#pragma unroll
            for (int n = 0; n < BLOCK_KV / 8; n++) x = fmaxf(x, fmaxf(S[m][n][half * 2], S[m][n][half * 2 + 1]));
            new_max[m][half] = fmaxf(rows.max[m][half], quad_max(x) * scale_log2);
            rescale |= new_max[m][half] > rows.max[m][half] + RESCALE_LOG2;
        }
    if (!__any_sync(~0u, rescale)) return;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float factor = exp2_approx(rows.max[m][half] - new_max[m][half]);
            rows.max[m][half] = new_max[m][half];
            rows.sum[m][half] *= factor;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                O[m][n][half * 2] *= factor;
                O[m][n][half * 2 + 1] *= factor;
            }
        }
}

// P = 2^(S - max) for 16 rows and 16 keys, as an A operand; l += P.
__device__ __forceinline__ void exponentiate(u32 (&P)[4], Rows& rows, const Scores& S, int k, int m, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int n = 2 * k + r / 2, half = r % 2;
        const float low = exp2_approx(fmaf(S[m][n][half * 2], scale_log2, -rows.max[m][half]));
        const float high = exp2_approx(fmaf(S[m][n][half * 2 + 1], scale_log2, -rows.max[m][half]));
        rows.sum[m][half] += low + high;
        P[r] = pack(low, high);
    }
}

// Which of batch * heads a CTA works on. On grid.x are as many heads as have their K and V in L2 at once (under a mask:
// all), on grid.z the next ones, or the splits of all. Of those on grid.x all first tiles come first: the ones with most
// keys (the last of a causal head), and the short ones fill the tail.
__device__ __forceinline__ int read_head_index(const ForwardParams& p) {
    return (p.splits > 1 ? 0 : read_block_z() * gridDim.x) + read_block_id();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) flash_v2_fwd(const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(128) unsigned char smem[];
    const u32 smem_base = smem_address(smem);
    const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;

    const int head_index = read_head_index(p);
    if (head_index >= p.batch * p.heads) return;
    const int batch_id = head_index / p.heads, head_id = head_index % p.heads, kv_head_id = head_id / p.group;
    const int q0 = (MASK ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * BLOCK_Q;
    const Band band{p.low, p.high, p.Nq, p.Nk};

    // The keys this CTA visits: those that any of its queries sees, in this split.
    const int q_last = min(q0 + BLOCK_Q, p.Nq) - 1;
    int kv_from = MASK ? band.first_key(q0) / BLOCK_KV : 0;
    int kv_end = (max(MASK ? band.end_key(q_last) : p.Nk, 0) + BLOCK_KV - 1) / BLOCK_KV;
    if (p.splits > 1) {
        int share = (max(kv_end - kv_from, 0) + p.splits - 1) / p.splits;
        kv_from += blockIdx.z * share;
        kv_end = min(kv_end, kv_from + share);
    }

    const u16* Q = p.q + batch_id * p.q_batch + head_id * p.q_head + q0 * p.q_row;
    // Where the head's K and V start, kept in shared memory: read once a tile, they would hold registers all the time.
    __shared__ const u16* volatile K_head;
    __shared__ const u16* volatile V_head;
    if (threadIdx.x == 0) {
        K_head = p.k + batch_id * p.k_batch + kv_head_id * p.k_head;
        V_head = p.v + batch_id * p.v_batch + kv_head_id * p.v_head;
    }
    __syncthreads();
    auto load_KV = [&](int tile, u32 stage) {
        const TileCopy<D, BLOCK_KV, THREADS> copy(threadIdx.x);
        const int kv0 = tile * BLOCK_KV;
        copy.load(smem_base + K_SMEM + stage, K_head + kv0 * p.k_row, p.k_row, p.Nk - kv0, p.d);
        copy.load(smem_base + V_SMEM + stage, V_head + kv0 * p.v_row, p.v_row, p.Nk - kv0, p.dv);
        cp_async_commit();
    };

    Output O = {};
    Rows rows;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) rows.max[m][half] = NO_KEY_YET, rows.sum[m][half] = 0.f;

    // A negative scale is folded into Q's sign and a zero one into Q = 0, so that a larger score is a larger weight.
    float scale_log2 = MASK == 2 ? p.softcap * LOG2_E : fabsf(p.scale) * LOG2_E;
    if (p.scale == 0.f) scale_log2 = LOG2_E;
    const float scale_over_softcap = MASK == 2 ? fabsf(p.scale) / p.softcap : 0.f;

    const Blocks<D, DOWN> V_smem(smem_base + V_SMEM, 0, 0, lane_id);
    const Blocks<D, DOWN> Q_smem(smem_base, warp_id * WARP_Q, 0, lane_id);
    const Blocks<D, ACROSS> K_smem(smem_base + K_SMEM, 0, 0, lane_id);

    if (kv_from < kv_end) {
        TileCopy<D, BLOCK_Q, THREADS>(threadIdx.x).load(smem_base, Q, p.q_row, p.Nq - q0, p.d);
        load_KV(kv_end - 1, 0);
        cp_async_wait<0>();
        __syncthreads();
        if (p.scale <= 0.f) {
            u32* Q_words = reinterpret_cast<u32*>(smem);
            for (int w = threadIdx.x; w < Q_BYTES / 4; w += THREADS)
                Q_words[w] = p.scale < 0.f ? Q_words[w] ^ 0x80008000u : 0u;
            __syncthreads();
        }
        u32 Q_rmem[D / 16][M_TILES][4];
        if constexpr (Q_IN_REGISTERS) {
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int m = 0; m < M_TILES; m++) Q_smem.load_A(Q_rmem[k][m], k, m * 16, 0);
        }

        u32 stage = 0;
        for (int tile = kv_end - 1; tile >= kv_from; tile--) {
            // This tile has landed, and every warp has left the previous one, whose buffers take the next tile.
            cp_async_wait<0>();
            __syncthreads();
            if (tile > kv_from) load_KV(tile - 1, stage ^ KV_BYTES);
            const int kv0 = tile * BLOCK_KV;

            // S = Q K^T  [WARP_Q, BLOCK_KV]
            Scores S;
            clear(S);
            multiply<D / 16>(
                S,
                [&](u32 (&A)[4], int k, int m) {
                    if constexpr (Q_IN_REGISTERS) {
#pragma unroll
                        for (int r = 0; r < 4; r++) A[r] = Q_rmem[k][m][r];
                    } else {
                        Q_smem.load_A(A, k, m * 16, 0);
                    }
                },
                [&](u32 (&B)[4], int k, int n) { K_smem.load_B_trans(B, k, n * 16, stage); });
            if constexpr (MASK == 2) cap(S, scale_over_softcap);
            if (MASK ? !band.full(q0, q0 + BLOCK_Q, kv0, kv0 + BLOCK_KV) : kv0 + BLOCK_KV > p.Nk)
                hide_keys(S, band, q0 + warp_id * WARP_Q, kv0, lane_id, -infinity());
            update_max(rows, O, S, scale_log2);

            // O += P V  [WARP_Q, D], P = 2^(S - max): exponentials of 16 keys run beside the mma's of the 16 before.
            multiply<BLOCK_KV / 16>(
                O, [&](u32 (&A)[4], int k, int m) { exponentiate(A, rows, S, k, m, scale_log2); },
                [&](u32 (&B)[4], int k, int n) { V_smem.load_B(B, n, k * 16, stage); });
            stage ^= KV_BYTES;
        }
    }

    // O = O / l and LSE = ln(l) + max; a row that sees no key is O = 0, LSE = -inf.
    const int first_row = q0 + warp_id * WARP_Q + lane_id / 4;
    const i64 row0 = (i64(read_block_z()) * gridDim.x + read_block_id()) * p.Nq;  // of this head, and split
    float* LSE = p.splits > 1 ? p.lse_partial : p.lse;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = quad_sum(rows.sum[m][half]);
            float inverse = sum == 0.f ? 0.f : 1.f / sum;
            int i = first_row + m * 16 + half * 8;
            if (lane_id % 4 == 0 && i < p.Nq)
                LSE[row0 + i] = sum == 0.f ? -infinity() : fmaf(rows.max[m][half], LN_2, logf(sum));
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                O[m][n][half * 2] *= inverse;
                O[m][n][half * 2 + 1] *= inverse;
            }
        }
    if (p.splits > 1) {
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int i = first_row + m * 16 + half * 8;
                float2* O_row = reinterpret_cast<float2*>(p.o_partial + (row0 + i) * p.dv) + lane_id % 4;
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    if (i < p.Nq && n * 8 < p.dv) O_row[n * 4] = make_float2(O[m][n][half * 2], O[m][n][half * 2 + 1]);
            }
        return;
    }

    // Through shared memory, for whole 16-byte stores: each warp reuses its own rows of Q.
    const int head = read_head_index(p);
    u16* O_global = p.o + head / p.heads * p.o_batch + head % p.heads * p.o_head;
    store_tile<D>(smem, O, 1.f, warp_id * WARP_Q, 0, lane_id);
    __syncwarp();
    copy_out<D, WARP_Q, D>(O_global + q0 * p.o_row, p.o_row, smem, warp_id * WARP_Q, 0, p.Nq - q0, p.dv, lane_id);
}
