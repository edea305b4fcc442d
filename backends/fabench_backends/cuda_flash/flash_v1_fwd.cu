// FlashAttention forward (Dao et al. 2022, arXiv 2205.14135, Algorithm 1):  O = softmax(scale Q K^T + mask) V,  LSE.
//
// The loops are the paper's: the outer one over blocks of K and V, the inner one over blocks of Q. So K and V are read
// once, but O, m and l of every query go to global memory and back once for every block of keys, O divided by l each
// time; and one CTA computes a whole head, so batch * heads CTAs are all there are. flash_v2_fwd.cu undoes all three.
// Two liberties: P = exp(S - m_new) at once, not exp(S - m_block) exp(m_block - m_new); and warps split the queries.
//
// Set by -D: HEAD_DIM, IS_BF16, MASK (0 only the end of the keys, 1 any band), WARPS, BLOCK_KV.
#include "band.cuh"
#include "mma_tile.cuh"
#include "params.cuh"
#include "scores.cuh"

constexpr int D = HEAD_DIM;  // of q, k, v and O, padded with zeros from d and dv
constexpr int THREADS = WARPS * 32;
constexpr int BLOCK_Q = WARPS * 16;  // a warp computes 16 queries
constexpr u32 KV_BYTES = BLOCK_KV * D * 2, Q_BYTES = BLOCK_Q * D * 2;
constexpr u32 K_SMEM = 0, V_SMEM = KV_BYTES, Q_SMEM = 2 * KV_BYTES;
static_assert(Q_SMEM + 2 * Q_BYTES == SMEM, "the host's shared memory size must match");

constexpr float LN_2 = 0.6931471805599453f, LOG2_E = 1.4426950408889634f;
// The maximum of no keys: finite, so that -inf - max stays -inf, and below any score that is not about to overflow.
constexpr float NO_KEY_YET = -3e38f;

extern "C" __global__ void __launch_bounds__(THREADS, 1) flash_v1_fwd(const __grid_constant__ V1ForwardParams p) {
    extern __shared__ __align__(128) unsigned char smem[];
    const u32 smem_base = smem_address(smem);
    const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
    const int batch_id = blockIdx.x / p.heads, head_id = blockIdx.x % p.heads, kv_head_id = head_id / p.group;
    const Band band{p.low, p.high, p.Nq, p.Nk};
    const float scale_log2 = p.scale * LOG2_E;

    const u16* Q = p.q + batch_id * p.q_batch + head_id * p.q_head;
    const u16* K = p.k + batch_id * p.k_batch + kv_head_id * p.k_head;
    const u16* V = p.v + batch_id * p.v_batch + kv_head_id * p.v_head;
    const i64 head_row = i64(blockIdx.x) * p.Nq;
    float* O_hbm = p.o_hbm + head_row * p.dv;
    float* m_hbm = p.m_hbm + head_row;
    float* l_hbm = p.l_hbm + head_row;

    // The rows and columns of a block of O that this thread holds, in every pass alike, so that it only ever reads back
    // what it wrote itself.
    const int thread_row = warp_id * 16 + lane_id / 4, thread_column = lane_id % 4 * 2;
    auto for_each_pair = [&](int q0, auto use) {  // use(half, n, row, pointer to two columns of O)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = q0 + thread_row + half * 8;
            float* O_row = O_hbm + i64(row) * p.dv + thread_column;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                if (row < p.Nq && n * 8 < p.dv) use(half, n, row, reinterpret_cast<float2*>(O_row + n * 8));
        }
    };
    const int q_tiles = (p.Nq + BLOCK_Q - 1) / BLOCK_Q, kv_tiles = (p.Nk + BLOCK_KV - 1) / BLOCK_KV;

    // O = 0, l = 0, m = -infinity (line 2)
    for (int tile = 0; tile < q_tiles; tile++)
        for_each_pair(tile * BLOCK_Q, [&](int, int n, int row, float2* O) {
            *O = make_float2(0.f, 0.f);
            if (n == 0 && lane_id % 4 == 0) m_hbm[row] = NO_KEY_YET, l_hbm[row] = 0.f;
        });

    const TileCopy<D, BLOCK_KV, THREADS> kv_copy(threadIdx.x);
    const TileCopy<D, BLOCK_Q, THREADS> q_copy(threadIdx.x);
    const Blocks<D, ACROSS> K_smem(smem_base + K_SMEM, 0, 0, lane_id);
    const Blocks<D, DOWN> V_smem(smem_base + V_SMEM, 0, 0, lane_id);
    const Blocks<D, DOWN> Q_smem(smem_base + Q_SMEM, warp_id * 16, 0, lane_id);
    for (int kv_tile = 0; kv_tile < kv_tiles; kv_tile++) {
        const int key0 = kv_tile * BLOCK_KV, key_end = min(key0 + BLOCK_KV, p.Nk);
        // Blocks of queries that see any of these keys.
        const int query_end = MASK ? band.end_query(key_end - 1) : p.Nq;
        const int first_tile = (MASK ? band.first_query(key0) : 0) / BLOCK_Q;
        const int end_tile = (query_end + BLOCK_Q - 1) / BLOCK_Q;
        if (first_tile >= end_tile) continue;
        auto load_Q = [&](int tile, u32 stage) {
            q_copy.load(smem_base + Q_SMEM + stage, Q + tile * BLOCK_Q * p.q_row, p.q_row, p.Nq - tile * BLOCK_Q, p.d);
            cp_async_commit();
        };
        __syncthreads();  // every warp has left the last block
        kv_copy.load(smem_base + K_SMEM, K + key0 * p.k_row, p.k_row, p.Nk - key0, p.d);
        kv_copy.load(smem_base + V_SMEM, V + key0 * p.v_row, p.v_row, p.Nk - key0, p.dv);
        load_Q(first_tile, 0);

        u32 stage = 0;
        for (int tile = first_tile; tile < end_tile; tile++, stage ^= Q_BYTES) {
            const int q0 = tile * BLOCK_Q;
            cp_async_wait<0>();
            __syncthreads();
            if (tile + 1 < end_tile) load_Q(tile + 1, stage ^ Q_BYTES);

            // O_i, l_i, m_i from global memory (line 8)
            Accumulator<1, D / 8> O;
            clear(O);
            for_each_pair(q0, [&](int half, int n, int, float2* from) {
                const float2 pair = *from;
                O[0][n][half * 2] = pair.x, O[0][n][half * 2 + 1] = pair.y;
            });
            float m[2], l[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = min(q0 + thread_row + half * 8, p.Nq - 1);
                m[half] = m_hbm[row], l[half] = l_hbm[row];
            }

            // S = scale Q K^T [16, BLOCK_KV] (line 9), masked
            Accumulator<1, BLOCK_KV / 8> S;
            clear(S);
            multiply<D / 16>(
                S, [&](u32 (&A)[4], int k, int) { Q_smem.load_A(A, k, 0, stage); },
                [&](u32 (&B)[4], int k, int n) { K_smem.load_B_trans(B, k, n * 16, 0); });
#pragma unroll
            for (int n = 0; n < BLOCK_KV / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) S[0][n][e] *= scale_log2;
            if (MASK ? !band.full(q0, q0 + BLOCK_Q, key0, key0 + BLOCK_KV) : key0 + BLOCK_KV > p.Nk)
                hide_keys(S, band, q0 + warp_id * 16, key0, lane_id, -infinity());

            // m_new, P = exp(S - m_new), l_new (lines 10, 11); O = l e^(m - m_new) O, ready for += P V
            __syncwarp();  // the quad has read m and l
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float largest = m[half], sum = 0.f;
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; n++)
                    largest = fmaxf(largest, fmaxf(S[0][n][half * 2], S[0][n][half * 2 + 1]));
                largest = quad_max(largest);
#pragma unroll
                for (int n = 0; n < BLOCK_KV / 8; n++)
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; e++) sum += S[0][n][e] = exp2_approx(S[0][n][e] - largest);
                const float kept = l[half] * exp2_approx(m[half] - largest);
                m[half] = largest, l[half] = kept + quad_sum(sum);
#pragma unroll
                for (int n = 0; n < D / 8; n++) O[0][n][half * 2] *= kept, O[0][n][half * 2 + 1] *= kept;
                const int row = q0 + thread_row + half * 8;
                if (lane_id % 4 == 0 && row < p.Nq) m_hbm[row] = m[half], l_hbm[row] = l[half];
            }

            // O = (O + P V) / l_new, to global memory (lines 12, 13)
            multiply<BLOCK_KV / 16>(
                O, [&](u32 (&A)[4], int k, int m) { to_A(A, S, k, m); },
                [&](u32 (&B)[4], int k, int n) { V_smem.load_B(B, n, k * 16, 0); });
            const float inverse[2] = {l[0] == 0.f ? 0.f : 1.f / l[0], l[1] == 0.f ? 0.f : 1.f / l[1]};
            for_each_pair(q0, [&](int half, int n, int, float2* to) {
                *to = make_float2(O[0][n][half * 2] * inverse[half], O[0][n][half * 2 + 1] * inverse[half]);
            });
        }
    }

    // O rounded, and LSE = m + ln l; a row that saw no key is O = 0, LSE = -inf.
    __syncwarp();
    u16* O_out = p.o + head_row * p.dv + thread_column;
    for (int tile = 0; tile < q_tiles; tile++)
        for_each_pair(tile * BLOCK_Q, [&](int, int n, int row, float2* O) {
            *reinterpret_cast<u32*>(O_out + i64(row) * p.dv + n * 8) = pack(O->x, O->y);
            if (n == 0 && lane_id % 4 == 0) {
                const float l = l_hbm[row];
                p.lse[head_row + row] = l == 0.f ? -infinity() : fmaf(m_hbm[row], LN_2, logf(l));
            }
        });
}
