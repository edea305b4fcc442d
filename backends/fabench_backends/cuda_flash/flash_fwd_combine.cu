// Forward with split keys, last step: O = sum_s w_s O_s,  w_s = exp(LSE_s - LSE),  LSE = ln sum_s exp(LSE_s).
// One warp a row; a split that saw no key has LSE_s = -inf and weight 0.
#include "params.cuh"
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) flash_fwd_combine(const __grid_constant__ ForwardParams p) {
    const int lane_id = threadIdx.x % 32, warp_id = threadIdx.x / 32;
    const int batch_id = blockIdx.x / p.heads, head_id = blockIdx.x % p.heads;
    const i64 rows = i64(p.batch) * p.heads * p.Nq;
    for (int i = blockIdx.y * WARPS + warp_id; i < p.Nq; i += gridDim.y * WARPS) {
        const i64 row = i64(blockIdx.x) * p.Nq + i;
        float largest = -infinity(), sum = 0.f;
        for (int s = 0; s < p.splits; s++) largest = fmaxf(largest, p.lse_partial[s * rows + row]);
        const float shift = largest == -infinity() ? 0.f : largest;
        for (int s = 0; s < p.splits; s++) sum += expf(p.lse_partial[s * rows + row] - shift);
        const float inverse = sum == 0.f ? 0.f : 1.f / sum;
        if (lane_id == 0) p.lse[row] = sum == 0.f ? -infinity() : shift + logf(sum);
        u16* O = p.o + batch_id * p.o_batch + head_id * p.o_head + i * p.o_row;
        for (int c = lane_id * 2; c < p.dv; c += 64) {
            float x = 0.f, y = 0.f;
            for (int s = 0; s < p.splits; s++) {
                const float weight = expf(p.lse_partial[s * rows + row] - shift) * inverse;
                const float2 part = *reinterpret_cast<const float2*>(p.o_partial + (s * rows + row) * p.dv + c);
                x = fmaf(weight, part.x, x);
                y = fmaf(weight, part.y, y);
            }
            *reinterpret_cast<u32*>(O + c) = pack(x, y);
        }
    }
}
