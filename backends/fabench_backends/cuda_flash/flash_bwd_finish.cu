// Backward, after the main kernel: dQ = scale * the fp32 sums, rounded. Eight numbers a thread.
#include "params.cuh"
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32) flash_bwd_finish(const __grid_constant__ FinishParams p) {
    for (i64 i = (i64(blockIdx.x) * WARPS * 32 + threadIdx.x) * 8; i < p.count; i += i64(gridDim.x) * WARPS * 32 * 8) {
        float4 a = *reinterpret_cast<const float4*>(p.sums + i), b = *reinterpret_cast<const float4*>(p.sums + i + 4);
        const float s = p.scale;
        *reinterpret_cast<uint4*>(p.out + i) =
            make_uint4(pack(a.x * s, a.y * s), pack(a.z * s, a.w * s), pack(b.x * s, b.y * s), pack(b.z * s, b.w * s));
    }
}
