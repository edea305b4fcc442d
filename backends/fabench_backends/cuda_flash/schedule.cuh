// Which tile of which head a CTA works on. Tiles of `section` heads are launched together, all heads' first tile, then
// all heads' second...: long tiles of a causal mask go first, so short ones fill the tail, while the K and V of the
// heads in flight still fit in the L2.
#pragma once
#include "ptx.cuh"

struct Work {
    int head, tile;
};

__device__ __forceinline__ Work work_of(int block, int heads, int tiles, int section) {
    const int first_head = block / (section * tiles) * section, rank = block - first_head * tiles;
    const int together = min(section, heads - first_head);
    return {uniform(first_head + rank % together), uniform(rank / together)};
}

// Deterministic sums: warps that add to the same numbers take turns. Wait until `before` of them have had theirs...
__device__ __forceinline__ void wait_for_turn(int* turn, int before, int lane_id) {
    if (lane_id == 0)
        while (*reinterpret_cast<volatile int*>(turn) != before) __nanosleep(20);
    __syncwarp();
    __threadfence();
}
// ...and pass it on once this warp's additions are done.
__device__ __forceinline__ void end_turn(int* turn, int before, int lane_id) {
    __threadfence();
    __syncwarp();
    if (lane_id == 0) *reinterpret_cast<volatile int*>(turn) = before + 1;
}
