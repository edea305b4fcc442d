// The helpers of cuda_flash/ptx.cuh for the emulator: the same names, what the PTX ISA says they do.
#pragma once
#include "emulator.h"

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;

inline float infinity() { return INFINITY; }
inline u32 smem_address(const void* pointer) { return static_cast<u32>(static_cast<const unsigned char*>(pointer) - smem); }

inline float to_float(u16 x) {
#if IS_BF16
    return bits<float>(u32(x) << 16);
#else
    return static_cast<float>(bits<_Float16>(x));
#endif
}
inline u16 from_float(float x) {
#if IS_BF16
    if (std::isnan(x)) return 0x7fff;
    const u32 word = bits<u32>(x);
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;  // to nearest, ties to even
#else
    return bits<u16>(static_cast<_Float16>(x));
#endif
}
inline float low_half(u32 x) { return to_float(x & 0xffff); }
inline float high_half(u32 x) { return to_float(x >> 16); }
inline u32 pack(float low, float high) { return from_float(low) | u32(from_float(high)) << 16; }

// Lanes 8i .. 8i + 7 give the rows of matrix i. Counts a bank conflict where two rows share four banks.
inline void ldmatrix(u32 (&r)[4], u32 address, bool trans) {
    auto* all = emulator::exchange({address});
    const u32 lane = emulator::lane();
    for (u32 i = 0; i < 4; i++) {
        for (u32 row = 0; row < 8; row++) {
            const u32 at = all[8 * i + row][0];
            if (at % 16) emulator::fail("ldmatrix row not 16-byte aligned");
            for (u32 other = 0; other < row; other++) emulator::bank_conflicts += (all[8 * i + other][0] / 16 % 8) == at / 16 % 8;
        }
        auto element = [&](u32 row, u32 column) {
            u16 x;
            std::memcpy(&x, smem + all[8 * i + row][0] + column * 2, 2);
            return u32(x);
        };
        const u32 g = lane / 4, t = lane % 4 * 2;
        r[i] = trans ? element(t, g) | element(t + 1, g) << 16 : element(g, t) | element(g, t + 1) << 16;
    }
}
inline void ldmatrix_x4(u32 (&r)[4], u32 address) { ldmatrix(r, address, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { ldmatrix(r, address, true); }

inline void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    auto* all = emulator::exchange({a[0], a[1], a[2], a[3], b0, b1});
    const u32 lane = emulator::lane(), g = lane / 4, t = lane % 4 * 2;
    auto half = [](u32 word, u32 which) { return to_float(which ? word >> 16 : word & 0xffff); };
    for (u32 e = 0; e < 4; e++) {
        const u32 row = g + e / 2 * 8, column = t + e % 2;
        for (u32 k = 0; k < 16; k++) {
            const u32 a_word = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], b_word = all[column * 4 + k % 8 / 2][4 + k / 8];
            d[e] = std::fma(half(a_word, k % 2), half(b_word, k % 2), d[e]);
        }
    }
}

inline void cp_async_16(u32 to, const void* global, bool valid) {
    if (to % 16 || (valid && reinterpret_cast<uintptr_t>(global) % 16)) emulator::fail("cp.async not 16-byte aligned");
    emulator::current->groups.back().push_back({to, global, valid});
}
inline void cp_async_commit() { emulator::current->groups.emplace_back(); }
template <int PENDING> void cp_async_wait() {
    auto& groups = emulator::current->groups;
    while (groups.size() > PENDING + 1) {
        for (const auto& copy : groups.front()) {
            if (copy.valid) std::memcpy(smem + copy.smem, copy.global, 16);
            else std::memset(smem + copy.smem, 0, 16);
        }
        groups.erase(groups.begin());
    }
}

inline float exp2_approx(float x) {
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0.f : y;
}
inline u32 read_thread_id() { return threadIdx.x; }
inline u32 read_block_id() { return blockIdx.x; }
inline u32 read_block_z() { return blockIdx.z; }
inline float select(bool condition, float x, float y) { return condition ? x : y; }
inline int uniform(int x) {
    auto* all = emulator::exchange({u32(x)});
    for (int l = 0; l < 32; l++)
        if (int(all[l][0]) != x) emulator::fail("a value that should be uniform differs between lanes");
    return x;
}
inline float quad_max(float x) {
    x = std::fmax(x, __shfl_xor_sync(~0u, x, 1));
    return std::fmax(x, __shfl_xor_sync(~0u, x, 2));
}
inline float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
inline void red_add(float* global, float4 x, bool valid) {
    if (!valid) return;
    if (reinterpret_cast<uintptr_t>(global) % 16) emulator::fail("red not 16-byte aligned");
    global[0] += x.x, global[1] += x.y, global[2] += x.z, global[3] += x.w;
}
