// The PTX instructions the kernels use, one short helper each. No CUDA header is needed: 16-bit numbers travel as bits.
// Fragment layouts are those of the PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

// IS_BF16 says which 16-bit numbers: bfloat16, or IEEE half precision.
#if IS_BF16
#define ELEMENT "bf16"
#else
#define ELEMENT "f16"
#endif

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// Shared memory is addressed with 32-bit integers by ldmatrix and cp.async.
__device__ __forceinline__ u32 smem_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Four 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the row addresses of matrix i.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// D[16, 8] += A[16, 16] @ B[16, 8], fp32 accumulation.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, asynchronously; with `valid` false the 16 bytes become zero.
__device__ __forceinline__ void cp_async_16(u32 smem, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(smem), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// 2^x; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats rounded to nearest even as 16-bit numbers, `low` in the low half.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 bits;
#if IS_BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#endif
    return bits;
}

// One 16-bit number as a float.
__device__ __forceinline__ float to_float(u16 bits) {
#if IS_BF16
    return __uint_as_float(static_cast<u32>(bits) << 16);
#else
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#endif
}
__device__ __forceinline__ float low_half(u32 bits) { return to_float(static_cast<u16>(bits)); }
__device__ __forceinline__ float high_half(u32 bits) { return to_float(static_cast<u16>(bits >> 16)); }

// The thread's and the CTA's index, read anew at each call: what is computed from them inside a loop, or after it, need
// not stay in registers through it.
__device__ __forceinline__ u32 read_thread_id() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ u32 read_block_id() {
    u32 block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}
__device__ __forceinline__ u32 read_block_z() {
    u32 block;
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(block));
    return block;
}

// x, the same in all lanes, in a way that lets the compiler keep it in a uniform register.
__device__ __forceinline__ int uniform(int x) { return __reduce_max_sync(~0u, x); }

// condition ? x : y, without a branch.
__device__ __forceinline__ float select(bool condition, float x, float y) {
    float z;
    asm("{.reg .pred p; setp.ne.b32 p, %3, 0; selp.f32 %0, %1, %2, p;}"
        : "=f"(z) : "f"(x), "f"(y), "r"(int(condition)));
    return z;
}

// Reductions over the four lanes that share a row of an mma accumulator.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// If `valid`, adds x to four neighbouring floats in global memory (16-byte aligned), in no given order. Predicated,
// not branched around, so that the warp stays together.
__device__ __forceinline__ void red_add(float* global, float4 x, bool valid) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};}"
                 :: "l"(global), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(int(valid)) : "memory");
#else
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; "
                 "@p red.global.add.f32 [%0], %1; @p red.global.add.f32 [%0+4], %2; "
                 "@p red.global.add.f32 [%0+8], %3; @p red.global.add.f32 [%0+12], %4;}"
                 :: "l"(global), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(int(valid)) : "memory");
#endif
}
