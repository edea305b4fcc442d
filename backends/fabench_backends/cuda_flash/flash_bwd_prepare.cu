// Backward, before the main kernel: delta = rowsum(O * dO) - dLSE (from the O that forward returned), the LSE in log2
// units, and dQ = 0. One warp a row. Rows past Nq, up to Nq_padded, become rows that see no key.
#include "params.cuh"
#include "ptx.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

extern "C" __global__ void __launch_bounds__(WARPS * 32) flash_bwd_prepare(const __grid_constant__ PrepareParams p) {
    const int lane_id = threadIdx.x % 32, warp_id = threadIdx.x / 32;
    const int batch_id = blockIdx.x / p.heads, head_id = blockIdx.x % p.heads;
    for (int row = blockIdx.y * WARPS + warp_id; row < p.Nq_padded; row += gridDim.y * WARPS) {
        const i64 padded_row = i64(blockIdx.x) * p.Nq_padded + row, dense_row = i64(blockIdx.x) * p.Nq + row;
        float delta = 0.f, lse2 = infinity();
        if (row < p.Nq) {
            const u16* O = p.o + batch_id * p.o_batch + head_id * p.o_head + row * p.o_row;
            const u16* dO = p.dO + batch_id * p.dO_batch + head_id * p.dO_head + row * p.dO_row;
            for (int c = lane_id * 8; c < p.d_v; c += 256) {
                uint4 o = *reinterpret_cast<const uint4*>(O + c), g = *reinterpret_cast<const uint4*>(dO + c);
                const u32 o_words[4] = {o.x, o.y, o.z, o.w}, g_words[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    delta = fmaf(low_half(o_words[w]), low_half(g_words[w]), delta);
                    delta = fmaf(high_half(o_words[w]), high_half(g_words[w]), delta);
                }
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) delta += __shfl_xor_sync(~0u, delta, distance);
            if (p.dlse != nullptr) delta -= p.dlse[dense_row];
            const float lse = p.lse[dense_row];
            if (lse != -infinity()) lse2 = lse * LOG2_E;
            else delta = 0.f;  // P is 0 there, and must stay so times whatever dLSE is
            float4* dQ = reinterpret_cast<float4*>(p.dq + dense_row * p.d_qk);
            for (int c = lane_id; c < p.d_qk / 4; c += 32) dQ[c] = make_float4(0.f, 0.f, 0.f, 0.f);
        }
        if (lane_id == 0) p.delta[padded_row] = delta, p.lse2[padded_row] = lse2;
    }
}
